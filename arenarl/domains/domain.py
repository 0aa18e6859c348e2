"""Domains: what judging, training and evaluation need to know of the queries, besides the tools that answer them.

A domain has a rubric (`configs/rubrics/<name>_<language>.yaml`), and what it has more of its own: a truth, against
which the embedded judge scores and which evaluation reports as it is; subtasks; data. Without a truth there are no
`true/` metrics and no noise-free figures, and the judges are LLMs or one's own. `environment.domain` chooses. Imports
of one domain's world stay behind `make_domain`.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.domains.prepared import refuse_other_data
from arenarl.domains.rubrics import domain_rubric
from arenarl.rollout.environment import Environment
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.system.user_input import named
from arenarl.trajectory import Query, Trajectory, read_queries, read_trajectories

if TYPE_CHECKING:
    from arenarl.llm.client import LLMClient

DOMAINS = {
    "travel": "arenarl.domains.travel.domain:TravelDomain",
    "research": "arenarl.domains.research.domain:ResearchDomain",
    "writing": "arenarl.domains.writing.domain:WritingDomain",
    "textcraft": "arenarl.domains.agentgym.textcraft:TextCraftDomain",
    "babyai": "arenarl.domains.agentgym.babyai:BabyAIDomain",
    "searchqa": "arenarl.domains.agentgym.searchqa:SearchQADomain",
    "sciworld": "arenarl.domains.agentgym.sciworld:SciWorldDomain",
}


# Parts of a trajectory that a judge is shown: the final answer (3.2, ArenaRL); thoughts, tool calls and answer (3.3);
# all, with tool results
ViewKind = Literal["answer", "calls", "results"]


def mean_of(values: Iterable[float]) -> float:
    """Return the mean; 0.0 without values."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


class Truth:
    """Noise-free findings on one trajectory. `dimensions` is all that a domain must say."""

    def dimensions(self) -> dict[str, float]:
        """0 to 10 for every dimension of the rubric."""
        raise NotImplementedError

    def figures(self) -> dict[str, float]:
        """Further figures of a table, in percent. A query of which one says nothing lacks it;
        an invalid trajectory has 0 in each."""
        return {}

    def passes(self) -> dict[str, bool]:
        """What pass@k counts, besides a win over the stored baseline."""
        return {}

    def findings(self) -> dict[str, Any]:
        """For the record of an evaluated trajectory, as JSON."""
        return {"figures": {name: round(value, 1) for name, value in self.figures().items()}}

    def verified(self, is_correct: bool | None) -> "Truth":
        """The same with what an LLM says of a known answer in place of the exact comparison; None:
        no verdict could be had."""
        return self

    def checklist(self) -> dict[str, bool]:
        """What the query's constraints ask for, by name: whether it is met.
        The names are the same for every trajectory of a query."""
        return {}


class Domain:
    """A rubric, and nothing else. What a domain has more, a class of its own says:
    its name and those below that it has.
    """

    name = ""
    subtasks: tuple[str, ...] = ()  # in the order of tables; () takes those that the queries name
    held_out: tuple[str, ...] = ()  # of these, tested only, unless `rl.subtasks` names them
    compares_splits = False  # True: `splits` itself sees to it that no task is in two that must not share one
    sources: tuple[Path, ...] = ()  # code that decides what `splits` makes; data that other code made is out of date

    def __init__(self, environment: EnvironmentConfig, data: DataConfig):
        self.environment, self.data = environment, data

    # (query, messages) -> what is true of the trajectory; asked of queries that `has_truth` only
    examine: Callable[[Query, list[dict[str, Any]]], Truth] | None = None
    # (environment, watch, client) -> (file name, records) of each split; `watch` hands on what takes time, one by one,
    # `client` asks LLMs where the data wants one
    splits: (
        Callable[[Environment, Callable[[list], Iterable], "LLMClient | None"], Iterator[tuple[str, list[Any]]]] | None
    ) = None
    # (query, environment, rng, skill) -> a trajectory of a scripted teacher's
    solve: Callable[..., Trajectory] | None = None

    def examine_view(self, query: Query, messages: list[dict[str, Any]]) -> Truth:
        """Examine a view without tool results.

        Args:
            messages: the answer alone, or thoughts, calls and answer. A stated fact that they cannot check is believed.
        """
        return self.examine(query, messages)

    def has_truth(self, query: Query) -> bool:
        """Whether the query's constraints hold what `examine` goes by; one of somebody's own may have none."""
        return True

    def constraints_of(self, subtask: str) -> type[BaseModel] | None:
        """The form of a query's constraints, for who reads them off its text; None: there is none."""
        return None

    def contradictions(self, query: Query, trajectory: Trajectory) -> list[str]:
        """Where an answer breaks the query's constraints by what it says itself:
        what a reader can tell who does not know the world."""
        return []

    @property
    def has_own_queries(self) -> bool:
        """Whether somebody wrote those in `data.folder`, who must not lose them:
        data/prepare.py leaves a manifest beside its own."""
        folder = Path(self.data.folder)
        return any(folder.glob("*_queries.jsonl")) and not (folder / "manifest.json").is_file()

    def subtasks_of(self, queries: Iterable[Query]) -> tuple[str, ...]:
        """The domain's, then those that only the queries name."""
        return tuple(dict.fromkeys([*self.subtasks, *(query.subtask for query in queries)]))

    def spread_over_subtasks(self, queries: list[Query], count: int) -> list[Query]:
        """The first `count` queries, taken from the subtasks in turn."""
        by_subtask = [[query for query in queries if query.subtask == subtask] for subtask in self.subtasks_of(queries)]
        return [query for turn in zip_longest(*by_subtask) for query in turn if query][:count]

    def read_split(self, name: str) -> list[Query]:
        """The queries of `<data.folder>/<name>_queries.jsonl`.
        Raises UserError if one is of another domain, or another config prepared them."""
        refuse_other_data(self.data, self.environment, name)
        path = Path(self.data.folder) / f"{name}_queries.jsonl"
        queries = read_queries(path)
        if other := next((query for query in queries if query.domain != self.name), None):
            what = f"query {other.query_id} is of the domain {other.domain}, environment.domain of {self.name}"
            raise UserError(f"{path}: {what}; change one of them")
        return queries

    def read_test_set(self) -> tuple[list[Query], dict[str, Trajectory]]:
        """The test queries and their stored baselines by query id; none where the file is not there.
        Raises UserError if a baseline is of no query, a second one of a query, or missing."""
        queries, path = self.read_split("test"), Path(self.data.folder) / "test_baselines.jsonl"
        if not path.is_file():
            return queries, {}
        baselines: dict[str, Trajectory] = {}
        for number, record in enumerate(read_trajectories(path), start=1):
            if not isinstance(query_id := record.get("query_id"), str):
                raise UserError(f"{path}, record {number}: query_id must be a text, the id of a test query")
            if query_id in baselines:
                raise UserError(f"{path}, record {number}: query {query_id} has a baseline already; leave one out")
            baselines[query_id] = Trajectory.from_record(record)
        if missing := [query.query_id for query in queries if query.query_id not in baselines]:
            raise UserError(f"{path} lacks {len(missing)} baselines, first {missing[0]}; prepare the data again")
        if unanswered := sum(not baseline.valid for baseline in baselines.values()):
            what = f"{unanswered} of {len(baselines)} end without an answer, and judges see none"
            say(f"{path}: {what}; put it in <answer> … </answer>")
        return queries, baselines


def make_domain(environment: EnvironmentConfig, data: DataConfig) -> Domain:
    """What `environment.domain` names: a domain of this project, a class as package.module:Class, or a rubric.
    Raises UserError if there is no such class, or no rubric."""
    name = environment.domain
    # of published queries (`data.source`) nobody here knows the truth
    if (name in DOMAINS and not data.source) or ":" in name:
        domain = named(DOMAINS.get(name, name), "environment.domain")(environment, data)
    else:
        domain = Domain(environment, data)
        domain.name = name
    domain_rubric(domain.name, data.language)
    return domain


def median_of(trajectories: Sequence[Trajectory], quality: Sequence[float]) -> Trajectory:
    """The one of median quality, the first of equals: a stored baseline."""
    return trajectories[sorted(range(len(trajectories)), key=lambda index: quality[index])[len(trajectories) // 2]]


def teacher_skills(data: DataConfig, rng: random.Random, count: int) -> list[float]:
    """How skilled the teacher is in each of SFT's trajectories:
    wholly in a share of them, `data.teacher_skill` in the others."""
    return [1.0 if rng.random() < data.careful_share else data.teacher_skill for _ in range(count)]


def needs(domain: Domain, part: str, purpose: str) -> Any:
    """A part of the domain that it need not have. Raises UserError if it has none."""
    if (had := getattr(domain, part)) is None:
        own = "a class that has it: package.module:Class (docs/domains.md, Bring your own environment)"
        choice = f"choose one of {', '.join(DOMAINS)}, or write {own}"
        raise UserError(f"environment.domain={domain.name} has no {part}, which {purpose}; {choice}")
    return had
