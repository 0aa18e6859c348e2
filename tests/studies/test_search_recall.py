"""Which page a question is about, found by BM25 and by an embedding model."""

import numpy as np
import pytest

from arenarl.config.schema import Config
from arenarl.domains.research.corpus import build_corpus
from arenarl.domains.research.passages import terms
from arenarl.studies.search_recall import Rankings, figures, make_kinds, table


class Terms:
    """An embedding model that knows no meaning: a dimension a term, of length 1."""

    def __init__(self, corpus):
        self.places = {
            term: place
            for place, term in enumerate(sorted({term for page in corpus.pages for term in terms(page.text)}))
        }

    def documents(self, texts):
        counts = np.zeros((len(texts), len(self.places)))
        for row, text in enumerate(texts):
            for term in terms(text):
                if term in self.places:
                    counts[row, self.places[term]] += 1
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9)

    queries = documents


@pytest.fixture(scope="module")
def config():
    config = Config()
    config.environment.search.corpus_size = 300
    config.evaluate.bootstrap = 100
    return config


@pytest.fixture(scope="module")
def corpus():
    return build_corpus(0, 300)


@pytest.fixture(scope="module")
def kinds(config, corpus):
    return make_kinds(config, corpus, 20)


def test_a_pages_own_first_sentence_finds_it_by_each_ranker(corpus):
    rankings = Rankings(corpus, Terms(corpus), 128, 40)
    for place in (0, 7, 299):
        orders = rankings.orders(corpus.pages[place].text)
        assert {order[0] for order in orders.values()} == {place}
        by_terms, among, alone = orders.values()
        assert sorted(among) == sorted(by_terms[:40]) and sorted(alone) == list(range(300))


def test_a_page_counts_by_its_best_chunk(corpus):
    """Cut into chunks of ten words, a page is found by words that stand in one of them alone."""
    rankings = Rankings(corpus, Terms(corpus), 10, 40)
    last = " ".join(corpus.pages[5].text.split()[-10:])
    near = np.array(rankings.orders(f"{corpus.pages[5].title} {last}")["embedder"])
    assert 5 in near[:3]


def test_vague_questions_are_as_they_come_and_hard_ones_those_that_bm25_misses(config, corpus, kinds):
    assert all(question.constraints["is_plain"] for question in kinds["plain"])
    assert not any(question.constraints["is_plain"] for kind in ("vague", "hard") for question in kinds[kind])
    assert len({question.query for questions in kinds.values() for question in questions}) == 60
    found = {
        kind: figures(Rankings(corpus, Terms(corpus), 128, 40), questions, config) for kind, questions in kinds.items()
    }
    assert found["hard"]["BM25"]["recall"]["mean"] == 0 < found["vague"]["BM25"]["recall"]["mean"]
    assert 0 < found["hard"]["BM25"]["mrr"]["mean"] < found["vague"]["BM25"]["mrr"]["mean"]
    rows = table({"figures": found}).splitlines()
    assert len(rows) == 2 + 9 and rows[2].startswith("| plain | BM25 | ")


@pytest.mark.slow(seconds=30)
def test_the_embedding_model_of_the_package_index_knows_what_is_near():
    pytest.importorskip("sentence_transformers")
    from arenarl.domains.research.rankers import Embedder

    texts = ["The treaty was signed in winter.", "A kitten slept on the sofa.", "Rain fell on the harbour."]
    assert Embedder("all-minilm-l6-v2", "cpu").best("a small cat resting", texts, 2)[0] == texts[1]
