"""Open-DeepResearch as a domain: the corpus's truth, the paper's three categories and closed questions,
the scripted teacher and its data."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from arenarl.domains.domain import Domain
from arenarl.domains.known_answers import has_answer
from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.questions import open_corpus
from arenarl.domains.research.solver import ResearchTools
from arenarl.domains.research.splits import research_splits, research_subtasks
from arenarl.domains.research.teacher import Teacher
from arenarl.domains.research.truth import ResearchTruth, examine
from arenarl.domains.research.view_truth import examine_view
from arenarl.llm.client import LLMClient
from arenarl.trajectory import Query, Trajectory

HERE = Path(__file__).parent


class ResearchDomain(Domain):
    name = "research"
    sources = (HERE.parent / "domain.py", HERE.parent / "known_answers.py", *sorted(HERE.glob("*.py")))

    @property
    def subtasks(self) -> tuple[str, ...]:
        return research_subtasks(self.data)

    @cached_property
    def corpus(self) -> Corpus:
        return open_corpus(self.data.research, self.environment)

    def has_truth(self, query: Query) -> bool:
        """By the answer, or by facts of this corpus."""
        wanted = query.constraints
        if not (isinstance(names := wanted.get("entities"), list) and all(isinstance(name, str) for name in names)):
            return False
        return has_answer(query) or (
            isinstance(facts := wanted.get("facts"), list) and bool(facts) and all(map(self._is_known, facts))
        )

    def _is_known(self, fact: Any) -> bool:
        is_fact = isinstance(fact, dict) and all(isinstance(fact.get(key), str) for key in ("url", "value", "sentence"))
        return is_fact and fact["url"] in self.corpus.entities

    def examine(self, query: Query, messages: list[dict[str, Any]]) -> ResearchTruth:
        return examine(self.corpus, query, messages)

    def examine_view(self, query: Query, messages: list[dict[str, Any]]) -> ResearchTruth:
        return examine_view(self.corpus, query, messages)

    def solve(self, query: Query, environment: ResearchTools, rng: random.Random, skill: float) -> Trajectory:
        return asyncio.run(
            Teacher(self.corpus, environment, self.data.research.max_tool_calls).solve(query, rng, skill)
        )

    def splits(
        self, environment: ResearchTools, watch: Callable[[list], Iterable] = iter, client: LLMClient | None = None
    ) -> Iterator[tuple[str, list[Any]]]:
        return research_splits(self.corpus, environment, self.data, watch, client)
