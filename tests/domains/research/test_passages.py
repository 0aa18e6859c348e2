"""Chunks, terms and snippets of pages, and the index over them, in memory and on disk."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arenarl.domains.research import passages
from arenarl.domains.research.pages import Page
from arenarl.domains.research.passages import CUT, PageIndex, StoredPages, chunks, cut, extract_snippet, extract_summary

MARA = "Mara Velden is a writer. She was born in Oslo in 1921.\n\nShe wrote The Long Tide, and won the Holm Prize."
OSLO = "Oslo is a city of 600,000 people.\n\nIts mayors are elected every four years."
TIDE = "The Long Tide is a novel of 1950. It is about tides, pools and cities."
LIBRARY = "朝阳图书馆位于北京。它有两百万册藏书。"
PAGES = [
    Page("https://x.example/mara", "Mara Velden", MARA), Page("https://x.example/oslo", "Oslo", OSLO),
    Page("https://x.example/tide", "The Long Tide", TIDE), Page("https://x.example/chaoyang", "朝阳图书馆", LIBRARY),
    Page("https://x.example/empty", "Nothing yet", ""),
]  # fmt: skip


@pytest.fixture(scope="module", params=["memory", "disk"])
def index(request, tmp_path_factory):
    if request.param == "memory":
        return PageIndex.build(PAGES, 12)
    folder = tmp_path_factory.mktemp("index")
    PageIndex.build(StoredPages.write(PAGES, folder), 12).save(folder)
    return PageIndex.open(folder)


@pytest.mark.parametrize(("query", "title"), [
    ("Who won the Holm Prize?", "Mara Velden"), ("The Long Tide", "The Long Tide"),
    ("novel about a city", "The Long Tide"), ("people in Oslo", "Oslo"), ("北京的图书馆", "朝阳图书馆"),
    ("nothing", "Nothing yet"), ("zebra", None), ("the of and", None), ("", None),
])  # fmt: skip
def test_the_page_that_answers_comes_first(index, query, title):
    assert [page.title for page, _ in index.search(query, 3)[:1]] == ([title] if title else [])


def test_a_result_has_all_chunks_of_its_page_best_first(index):
    page, best = index.search("what prize did Mara Velden win", 1)[0]
    assert page == PAGES[0] and "Holm Prize" in best[0]
    assert sorted(best) == sorted(chunks(page.text, 12)) and len(best) > 1


def test_a_chunk_without_the_name_is_found_by_its_pages_title():
    ada = Page("a", "Ada Holm", "Ada Holm paints.\n\nShe was born in Bergen.")
    bo = Page("b", "Bo Lie", "Bo Lie sings.\n\nHe was born in Bergen.")
    page, best = PageIndex.build([ada, bo], 5).search("Where was Bo Lie born?", 2)[0]
    assert (page, best[0]) == (bo, "He was born in Bergen.")


def test_pages_are_found_by_url_and_title_and_the_first_wins(index):
    for page in PAGES:
        assert index.find(page.url) == index.find(page.title) == index.find(f" {page.title.upper()}  ") == page
    assert index.find("Mara") is None and index.find("") is None
    assert PageIndex.build([Page("1", "Same", "One."), Page("2", "Same", "Two.")], 12).find("same").url == "1"


def test_many_good_chunks_of_a_page_do_not_hide_other_pages():
    short = [Page(f"{number}", f"Short {number}", "One tide among many other words.") for number in range(9)]
    pages = [Page("long", "Long", "\n\n".join(["Tide tide tide tide."] * 300)), *short]
    best = PageIndex.build(pages, 4).search("tide", 5)
    assert len(best) == 5 and best[0][0].url == "long" and len(best[0][1]) == 300


@given(st.lists(st.integers(0, 9), min_size=0, max_size=900), st.integers(1, 70))
def test_top_equals_a_stable_sort(values, count):
    scores = np.array(values, dtype=np.float32)
    order = [place for place in np.argsort(-scores, kind="stable").tolist() if scores[place] > 0]
    assert passages.top(scores, count).tolist() == order[:count]


TEXTS = st.text(alphabet="ab .!?\n京。T5", max_size=400)


@given(TEXTS, TEXTS, st.integers(1, 30))
def test_chunks_keep_all_tokens_in_order_and_chunks_and_snippets_keep_their_size(text, query, size):
    spans = passages.chunk_spans(text, size)
    sentences = [text[start:end] for start, end in passages.sentence_spans(text)]
    snippet = extract_snippet(query, [text], size)
    assert all(passages.count_tokens(part) <= size for part in (*chunks(text, size), snippet))
    assert all(end <= start for (_, end), (start, _) in pairwise(spans)) and (snippet or not text.strip())
    for parts in (chunks(text, size), sentences):
        assert "".join("".join(parts).split()) == "".join(text.split())


def test_a_snippet_has_the_sentences_that_answer_and_a_summary_the_first_whole_ones():
    texts, born = [MARA, OSLO], "She was born in Oslo in 1921."
    question = "When was Mara Velden born, in which city?"
    whole = f"Mara Velden is a writer. {born} Oslo is a city of 600,000 people."
    assert extract_snippet(question, texts, 20) == whole and extract_snippet("born", texts, 60) == born
    assert extract_snippet("cities", texts, 60) == "Oslo is a city of 600,000 people."
    assert extract_snippet("藏书", [LIBRARY], 60) == "它有两百万册藏书。"
    assert extract_snippet("Mara Velden born", [MARA], 8, "Mara Velden") == born
    irish = "İzmir is far. Then came O’Brien. It rained."
    assert extract_snippet("Who is O'Brien?", [irish], 5) == "Then came O’Brien."
    assert extract_snippet("zebra", texts, 5) == "Mara Velden is a writer."
    assert extract_snippet("born", ["She was born in a house by the sea."], 5) == f"She was born in a{CUT}"
    assert extract_summary(MARA, 60) == f"Mara Velden is a writer. She was born in Oslo in 1921.{CUT}"
    assert extract_summary(MARA, 10) == f"Mara Veld{CUT}" and extract_summary(MARA, 1000) == MARA


@pytest.mark.parametrize("part", ["1", "y", ". ", "中"])
def test_searching_a_page_takes_linear_time(part):
    """With 250,000 characters, quadratic time would be a minute."""
    text, start = part * (250_000 // len(part)), time.process_time()
    extract_snippet("1 y 中中 word", [text], 60, "T")
    assert chunks(text, 128) is not None and extract_summary(text, 2000) and cut(text, 60)
    assert time.process_time() - start < 4
