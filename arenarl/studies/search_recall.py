"""How often a search finds the page that has the answer:
by BM25, by an embedding model among BM25's best pages, and by the model alone.

    python -m arenarl.studies.search_recall --config configs/quickstart.yaml \\
        --set environment.search.embedder=all-minilm-l6-v2

The whole text of a closed question (3.1, InfoAgent) is searched for among the pages that the questions are made from.
`plain` ones name the leaves of their trees, `vague` ones name nothing, and `hard` are the vague ones that InfoAgent
keeps: those of which BM25 misses the page within `data.research.retriever_results`, so that its recall is low by
construction. Prints a table and, as its last line, JSON; writes results/search_recall.json, which the table of
docs/domains.md is made of.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import Config, ResearchDataConfig
from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.passages import chunks
from arenarl.domains.research.questions import make_questions, open_corpus
from arenarl.domains.research.rankers import Embedder
from arenarl.evaluation import statistics
from arenarl.report import markdown
from arenarl.report.provenance import commit, cpu
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.errors import UserError, guarded
from arenarl.trajectory import Query

FILE = "search_recall.json"  # of `results`
FOUND_WITHIN = 5  # pages, for recall
KINDS = {
    "plain": {"plain_share": 1.0},
    "vague": {"plain_share": 0.0, "retriever_results": None},
    "hard": {"plain_share": 0.0},
}


def make_kinds(config: Config, corpus: Corpus, count: int) -> dict[str, list[Query]]:
    """`count` questions of each kind."""
    search = replace(config.environment.search, embedder=None, reranker=None)  # the solver's
    environment, taken = ResearchEnvironment.from_config(replace(config.environment, search=search), "en"), set()

    def questions(kind: str, research: ResearchDataConfig) -> list[Query]:
        return make_questions(corpus, environment, research, f"search_recall{config.data.seed}-{kind}", count, taken)

    return {kind: questions(kind, replace(config.data.research, **changes)) for kind, changes in KINDS.items()}


class Rankings:
    """Orders of a corpus's pages (P) for a text, best first, as places among them."""

    def __init__(self, corpus: Corpus, embedder: Embedder, chunk_tokens: int, candidates: int):
        self.corpus, self.embedder, self.candidates = corpus, embedder, candidates
        self.place = {page.url: number for number, page in enumerate(corpus.pages)}
        parts = [chunks(page.text, chunk_tokens) or [""] for page in corpus.pages]
        self._first_chunk_P = np.cumsum([0, *map(len, parts[:-1])])
        self._chunks_CD = embedder.documents([chunk for page in parts for chunk in page])

    def orders(self, text: str) -> dict[str, Sequence[int]]:
        """By each ranker. A page counts by its best chunk."""
        near_P = np.maximum.reduceat(self._chunks_CD @ self.embedder.queries([text])[0], self._first_chunk_P)
        by_terms = [self.place[page.url] for page, _ in self.corpus.index.search(text, len(self.corpus.pages))]
        best = by_terms[: self.candidates]
        return {
            "BM25": by_terms,
            f"embedder among BM25's {self.candidates}": sorted(best, key=lambda page: -near_P[page]),
            "embedder": np.argsort(-near_P, kind="stable").tolist(),
        }


def reciprocal_rank(order: Sequence[int], wanted: int) -> float:
    """
    >>> reciprocal_rank([7, 3], 3), reciprocal_rank([7], 3)
    (0.5, 0.0)
    """
    return 1 / (order.index(wanted) + 1) if wanted in order else 0.0


def figures(rankings: Rankings, questions: Sequence[Query], config: Config) -> dict[str, dict[str, Any]]:
    """Of each ranker recall and MRR with 95 % intervals over the questions."""
    found: dict[str, list[float]] = {}
    for question in questions:
        for ranker, order in rankings.orders(question.query).items():
            found.setdefault(ranker, []).append(reciprocal_rank(order, rankings.place[question.constraints["root"]]))

    def over_questions(values: Sequence[float]) -> dict[str, Any]:
        return statistics.mean(values, ["all"] * len(values), config.evaluate.bootstrap, config.seed)

    def both(ranks: list[float]) -> dict[str, Any]:
        return {"recall": over_questions([rank >= 1 / FOUND_WITHIN for rank in ranks]), "mrr": over_questions(ranks)}

    return {ranker: both(ranks) for ranker, ranks in found.items()}


def table(summary: dict[str, Any]) -> str:
    """A row a kind of questions and ranker."""
    rows = [
        [
            kind,
            ranker,
            *(
                f"{one[name]['mean']:.3f} [{one[name]['ci'][0]:.3f}, {one[name]['ci'][1]:.3f}]"
                for name in ("recall", "mrr")
            ),
        ]
        for kind, rankers in summary["figures"].items()
        for ranker, one in rankers.items()
    ]
    return markdown.table(["questions", "ranked by", f"recall@{FOUND_WITHIN}", "MRR"], rows)


def recall_table(results: Path) -> str:
    """What `results` has, as docs/domains.md shows it."""
    summary = read_json(results / FILE)
    return table(summary) if summary else "not run"


def main() -> None:
    def add_count(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--count", type=int, default=300, help="questions of each kind")

    config, arguments = parse_arguments(__doc__, add_count)
    search, started = config.environment.search, time.monotonic()
    if not search.embedder:
        raise UserError("name an embedding model: --set environment.search.embedder=all-minilm-l6-v2")
    embedder, corpus = Embedder(search.embedder, search.device), open_corpus(config.data.research, config.environment)
    kinds = make_kinds(config, corpus, arguments.count)
    rankings = Rankings(corpus, embedder, search.search_chunk_tokens, search.bm25_chunks or len(corpus.pages))
    found = {kind: figures(rankings, questions, config) for kind, questions in kinds.items()}
    summary = {
        "embedder": search.embedder, "pages": len(corpus.pages), "questions": arguments.count, "seed": config.data.seed,
        "seconds": round(time.monotonic() - started), "commit": commit(), "cpu": cpu(), "figures": found,
    }  # fmt: skip
    print(table(summary))
    write_json(Path(config.results) / FILE, summary)
    print(f"written: {Path(config.results) / FILE}")
    print(
        json.dumps(
            {
                kind: {ranker: one["recall"]["mean"] for ranker, one in rankers.items()}
                for kind, rankers in found.items()
            }
        )
    )


if __name__ == "__main__":
    guarded(main)
