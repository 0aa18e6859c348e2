from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arenarl.domains.research.page_index import PageIndex, StoredPages, top
from arenarl.domains.research.pages import Page
from arenarl.domains.research.passages import (
    CUT,
    chunk_spans,
    chunks,
    count_tokens,
    cut,
    extract_snippet,
    extract_summary,
    sentence_spans,
    terms,
)

PAGES = [
    Page(
        "https://x.example/mara",
        "Mara Velden",
        "Mara Velden is a writer. She was born in Oslo in 1921.\n\nShe wrote The Long Tide, and won the Holm Prize.",
    ),
    Page(
        "https://x.example/oslo",
        "Oslo",
        "Oslo is a city of 600,000 people.\n\nIts mayors are elected every four years.",
    ),
    Page(
        "https://x.example/tide",
        "The Long Tide",
        "The Long Tide is a novel of 1950. It is about tides, pools and cities.",
    ),
    Page("https://x.example/chaoyang", "朝阳图书馆", "朝阳图书馆位于北京。它有两百万册藏书。"),
    Page("https://x.example/empty", "Nothing yet", ""),
]


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
    ("nothing", "Nothing yet"),
])  # fmt: skip
def test_the_page_that_answers_comes_first(index, query, title):
    assert index.search(query, 3)[0][0].title == title


def test_a_page_has_all_its_chunks_best_first(index):
    page, found = index.search("what prize did Mara Velden win", 1)[0]
    assert page == PAGES[0] and "Holm Prize" in found[0]
    assert sorted(found) == sorted(chunks(page.text, 12)) and len(found) > 1


def test_a_chunk_without_the_name_is_found_by_its_pages_title():
    pages = [
        Page("a", "Ada Holm", "Ada Holm paints.\n\nShe was born in Bergen."),
        Page("b", "Bo Lie", "Bo Lie sings.\n\nHe was born in Bergen."),
    ]
    page, found = PageIndex.build(pages, 5).search("Where was Bo Lie born?", 2)[0]
    assert (page.title, found[0]) == ("Bo Lie", "He was born in Bergen.")


def test_what_no_page_has_is_not_found(index):
    assert index.search("zebra", 5) == index.search("the of and", 5) == index.search("", 5) == []


def test_pages_are_found_by_address_and_title(index):
    for page in PAGES:
        assert index.find(page.url) == index.find(page.title) == index.find(f" {page.title.upper()}  ") == page
    assert index.find("Mara") is None and index.find("") is None


def test_of_pages_with_one_title_the_first_is_found():
    assert PageIndex.build([Page("1", "Same", "One."), Page("2", "Same", "Two.")], 12).find("same").url == "1"


def test_pages_without_a_word_cannot_be_indexed():
    with pytest.raises(ValueError, match="no page has a word"):
        PageIndex.build([Page("1", "…", " ")], 12)


def test_as_many_pages_as_wanted_are_found_though_one_has_many_good_chunks():
    short = [Page(f"{number}", f"Short {number}", "One tide among many other words.") for number in range(9)]
    pages = [Page("long", "Long", "\n\n".join(["Tide tide tide tide."] * 300)), *short]
    found = PageIndex.build(pages, 4).search("tide", 5)
    assert len(found) == 5 and found[0][0].url == "long" and len(found[0][1]) == 300


@given(st.lists(st.integers(0, 9), min_size=0, max_size=900), st.integers(1, 70))
def test_top_is_what_sorting_gives(values, count):
    scores = np.array(values, dtype=np.float32)
    order = [place for place in np.argsort(-scores, kind="stable").tolist() if scores[place] > 0]
    assert top(scores, count).tolist() == order[:count]


TEXTS = st.text(alphabet="ab .!?\n京。T5", max_size=400)


@given(TEXTS, st.integers(1, 30))
def test_chunks_keep_every_token_in_order_and_within_their_size(text, size):
    spans = chunk_spans(text, size)
    assert all(count_tokens(text[start:end]) <= size for start, end in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert "".join("".join(chunks(text, size)).split()) == "".join(text.split())
    assert "".join("".join(text[start:end] for start, end in sentence_spans(text)).split()) == "".join(text.split())


def test_queries_and_documents_meet_in_singular_and_plural():
    assert terms("The cities' libraries") == terms("city library")


@given(TEXTS, TEXTS, st.integers(1, 20))
def test_a_snippet_keeps_to_its_length(query, text, words):
    snippet = extract_snippet(query, [text], words)
    assert count_tokens(snippet) <= words and (snippet or not text.strip())


def test_a_snippet_answers_and_leaves_out_what_does_not():
    texts = [PAGES[0].text, PAGES[1].text]
    assert extract_snippet("When was Mara Velden born, in which city?", texts, 20) == (
        "Mara Velden is a writer. She was born in Oslo in 1921. Oslo is a city of 600,000 people."
    )
    assert extract_snippet("born", texts, 60) == "She was born in Oslo in 1921."
    assert extract_snippet("cities", texts, 60) == "Oslo is a city of 600,000 people."
    assert extract_snippet("藏书", [PAGES[3].text], 60) == "它有两百万册藏书。"
    assert extract_snippet("Mara Velden born", [PAGES[0].text], 8, "Mara Velden") == "She was born in Oslo in 1921."
    assert extract_snippet("zebra", texts, 5) == "Mara Velden is a writer."


def test_a_sentence_that_is_too_long_is_cut():
    assert extract_snippet("born", ["She was born in a house by the sea."], 5) == f"She was born in a{CUT}"
    assert cut("京都大学", 2) == f"京都{CUT}"


def test_a_summary_is_the_beginning_in_whole_sentences():
    assert extract_summary(PAGES[0].text, 60) == f"Mara Velden is a writer. She was born in Oslo in 1921.{CUT}"
    assert extract_summary(PAGES[0].text, 10) == f"Mara Veld{CUT}"
    assert extract_summary(PAGES[0].text, 1000) == PAGES[0].text
