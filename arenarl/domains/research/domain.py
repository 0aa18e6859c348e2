"""Open-DeepResearch as a domain: truth, open-ended and closed queries, the scripted teacher and its data.

ArenaRL has 2,662 SFT trajectories, 2,216 RL queries and 100 test queries (5.2), all open-ended. InfoAgent has 14k SFT
trajectories and 5.7k RL questions (3.1), all closed. Set the sizes with `data.sft_size`, `data.rl_size` and
`data.test_per_subtask`, and the mixture with `data.research.open_share`.
"""

import asyncio
import random
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from arenarl.domains.domain import Domain, Split, Watch
from arenarl.domains.known_answers import has_answer, is_correct
from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.extraction import rephrase
from arenarl.domains.research.open_queries import OPEN_SUBTASKS, fact_coverage, make_open_queries
from arenarl.domains.research.questions import SUBTASK, make_questions, open_corpus
from arenarl.domains.research.teacher import ResearchTools, Teacher
from arenarl.domains.research.truth import ResearchTruth, examine, examine_view
from arenarl.llm.client import LLMClient
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory

HERE = Path(__file__).parent


class ResearchDomain(Domain):
    name = "research"
    sources = tuple(HERE.parent / f"{file}.py" for file in ("domain", "known_answers", "stated_facts", "bm25"))
    sources += tuple(sorted(HERE.glob("*.py")))

    @property
    def subtasks(self) -> tuple[str, ...]:
        share = self.data.research.open_share
        return (OPEN_SUBTASKS if share > 0 else ()) + ((SUBTASK,) if share < 1 else ())

    @cached_property
    def corpus(self) -> Corpus:
        return open_corpus(self.data.research, self.environment)

    def has_truth(self, query: Query) -> bool:
        """Return True if the constraints name the entities, and hold a known answer or facts of this corpus."""
        names, facts = (query.constraints.get(key) for key in ("entities", "facts"))
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            return False
        return has_answer(query) or isinstance(facts, list) and bool(facts) and all(map(self._has_fact, facts))

    def _has_fact(self, fact: Any) -> bool:
        texts = [fact.get(key) for key in ("url", "value", "sentence")] if isinstance(fact, dict) else [None]
        return all(isinstance(text, str) for text in texts) and fact["url"] in self.corpus.entities

    def examine(self, query: Query, messages: list[dict[str, Any]]) -> ResearchTruth:
        return examine(self.corpus, query, messages)

    def examine_view(self, query: Query, messages: list[dict[str, Any]]) -> ResearchTruth:
        return examine_view(self.corpus, query, messages)

    def solve(self, query: Query, environment: ResearchTools, rng: random.Random, skill: float) -> Trajectory:
        teacher = Teacher(self.corpus, environment, self.data.research.max_tool_calls)
        return asyncio.run(teacher.solve(query, rng, skill))

    def _quality(self, query: Query, trajectory: Trajectory) -> float:
        """Return 0 to 1: correctness of a closed answer, or the share of facts that an open-ended answer states."""
        if "description" in query.constraints:
            return float(is_correct(query.constraints, trajectory.answer))
        return fact_coverage(self.corpus, query.constraints, trajectory.answer)

    def splits(
        self, environment: ResearchTools, watch: Watch = iter, client: LLMClient | None = None
    ) -> Iterator[Split]:
        """Yield the splits. With a `client`, `data.research.rephraser` rewords the closed queries.
        Raises UserError if the language is not the corpus's, or if the corpus yields too few queries."""
        data, research, seed = self.data, self.data.research, f"research{self.data.seed}"
        if data.language != "en":
            reason = "the research domain's queries are in English; set data.language=en"
            raise UserError(f"data.language={data.language}: {reason}")
        taken: set[str] = set()

        def draw(split: str, total: int, open_ended: int) -> list[Query]:
            """Return `total` shuffled queries, `open_ended` of them open-ended and the rest closed."""
            queries = make_questions(self.corpus, environment, research, f"{seed}-{split}", total - open_ended, taken)
            if client:
                queries = asyncio.run(rephrase(client, research.rephraser, queries, taken))
            queries += make_open_queries(self.corpus, f"{seed}-{split}", open_ended, taken)
            random.Random(f"{seed}-{split}").shuffle(queries)
            return queries

        per_subtask, share = data.test_per_subtask, research.open_share
        test = draw("test", per_subtask * len(self.subtasks), per_subtask * len(set(self.subtasks) - {SUBTASK}))
        rl = draw("rl", data.rl_size, round(data.rl_size * share))
        sft = draw("sft", data.sft_size, round(data.sft_size * share))
        return self.make_splits(environment, watch, test, rl, sft)
