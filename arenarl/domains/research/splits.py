"""The splits of the research domain: test queries, stored baselines, RL queries, SFT trajectories (5.2, ArenaRL;
3.1, InfoAgent).

ArenaRL's Open-DeepResearch has 2,662 SFT trajectories, 2,216 RL queries and 100 test queries, InfoAgent 14k SFT
trajectories and 5.7k RL questions: `data.sft_size`, `data.rl_size`, `data.test_per_subtask`, with
`data.research.open_share` at 1 and at 0.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from arenarl.config.schema import DataConfig
from arenarl.domains.domain import teacher_skills
from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.open_queries import OPEN_SUBTASKS, make_open_queries
from arenarl.domains.research.questions import SUBTASK, make_questions
from arenarl.domains.research.rephrasing import rephrase
from arenarl.domains.research.solver import ResearchTools
from arenarl.domains.research.teacher import Teacher
from arenarl.llm.client import LLMClient
from arenarl.system.errors import UserError
from arenarl.trajectory import Query


def research_subtasks(config: DataConfig) -> tuple[str, ...]:
    """Those that the splits have, by `data.research.open_share`."""
    share = config.research.open_share
    return (OPEN_SUBTASKS if share > 0 else ()) + ((SUBTASK,) if share < 1 else ())


def research_splits(
    corpus: Corpus,
    environment: ResearchTools,
    config: DataConfig,
    watch: Callable[[list], Iterable] = iter,
    client: LLMClient | None = None,
) -> Iterator[tuple[str, list[Any]]]:
    """The splits by file name. `watch` hands on the queries that the teacher solves, one by one, which is what takes
    the time. With a `client`, `data.research.rephraser` words the closed ones.

    Raises:
        UserError: the language is not that of the corpus, or the corpus does not yield so many queries.
    """
    if config.language != "en":
        raise UserError(
            f"data.language={config.language}: the research domain's queries are in English; set data.language=en"
        )
    teacher, taken, seed = Teacher(corpus, environment, config.research.max_tool_calls), set(), f"research{config.seed}"

    def draw(split: str, closed: int, opened: int) -> list[Query]:
        queries = make_questions(corpus, environment, config.research, f"{seed}-{split}", closed, taken)
        if client:
            queries = asyncio.run(rephrase(client, config.research.rephraser, queries, taken))
        queries += make_open_queries(corpus, f"{seed}-{split}", opened, taken)
        random.Random(f"{seed}-{split}").shuffle(queries)
        return queries

    def spread(total: int) -> tuple[int, int]:
        opened = round(total * config.research.open_share)
        return total - opened, opened

    subtasks, each = research_subtasks(config), config.test_per_subtask
    test = draw("test", each * (SUBTASK in subtasks), each * (len(subtasks) - (SUBTASK in subtasks)))
    rl, sft = draw("rl", *spread(config.rl_size)), draw("sft", *spread(config.sft_size))
    yield "test_queries", test
    with asyncio.Runner() as runner:
        rng = random.Random(f"{seed}-baselines")
        baselines = [
            runner.run(teacher.median(query, rng, config.baseline_skill, config.baseline_attempts))
            for query in watch(test)
        ]
        yield "test_baselines", [baseline.to_record() for baseline in baselines]
        yield "rl_queries", rl
        rng = random.Random(f"{seed}-teacher")
        skills = teacher_skills(config, rng, len(sft))
        yield (
            "sft",
            [
                runner.run(teacher.solve(query, rng, skill)).to_record()
                for query, skill in zip(watch(sft), skills, strict=True)
            ],
        )
