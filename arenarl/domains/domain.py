"""The interface of a domain, and `make_domain`, which creates the one that `environment.domain` names.

Every domain has a rubric (`configs/rubrics/<name>_<language>.yaml`). It may also have a truth, subtasks and data. The
embedded judge scores by the truth, and evaluation reports it without noise. A domain without a truth has no `true/`
metrics; its judges are LLMs or your own. Classes of one domain are imported only when `make_domain` needs them.
"""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import signature
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.domains.prepared import manifest_of, refuse_other_data
from arenarl.domains.rubrics import domain_rubric
from arenarl.llm.client import LLMClient
from arenarl.rollout.environment import Environment
from arenarl.system.errors import UserError
from arenarl.system.progress import say, say_once
from arenarl.system.user_input import import_named
from arenarl.tournament.calls import as_number
from arenarl.trajectory import Query, Trajectory, language_of, read_queries, read_trajectories

T = TypeVar("T")
DOMAINS = {
    "travel": "arenarl.domains.travel.domain:TravelDomain",
    "research": "arenarl.domains.research.domain:ResearchDomain",
    "writing": "arenarl.domains.writing.domain:WritingDomain",
    "textcraft": "arenarl.domains.agentgym.textcraft:TextCraftDomain",
    "babyai": "arenarl.domains.agentgym.babyai:BabyAIDomain",
    "searchqa": "arenarl.domains.agentgym.searchqa:SearchQADomain",
    "sciworld": "arenarl.domains.agentgym.sciworld:SciWorldDomain",
    "agentgym": "arenarl.domains.agentgym.server:ServerDomain",
}


# The parts of a trajectory in a judge's prompt: the final answer (3.2, ArenaRL); thoughts, tool calls and answer (3.3);
# everything, with tool results
ViewKind = Literal["answer", "calls", "results"]
Split = tuple[str, list[Any]]  # (file name, records)
Watch = Callable[[list], Iterable]  # wraps queries while they are solved, to show the progress
MOST_FAILURES = 10_000  # draws in a row without a new query


def mean_of(values: Iterable[float]) -> float:
    """Return the mean; 0.0 without values."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


class Truth:
    """Noise-free findings on one trajectory. Only `dimensions` is required."""

    def dimensions(self) -> dict[str, float]:
        """Return a score from 0 to 10 for every dimension of the rubric."""
        raise NotImplementedError

    def figures(self) -> dict[str, float]:
        """Return further table columns in percent, without columns that do not apply to the query.

        An invalid trajectory counts as 0 in every column.
        """
        return {}

    def passes(self) -> dict[str, bool]:
        """Return the criteria that pass@k counts, besides a win over the stored baseline."""
        return {}

    def findings(self) -> dict[str, Any]:
        """Return the JSON values that evaluation stores with the trajectory."""
        return {"figures": {name: round(value, 1) for name, value in self.figures().items()}}

    def verified(self, is_correct: bool | None) -> "Truth":
        """Return this truth with an LLM's verdict instead of the exact comparison; None: the LLM gave no verdict."""
        return self

    def checklist(self) -> dict[str, bool]:
        """Return which constraints of the query are met. All trajectories of a query have the same keys."""
        return {}

    def information(self) -> float:
        """Return how much of the needed information the tool results hold. A turn that raises it is pivotal."""
        return sum(self.dimensions().values())


class Domain:
    """A domain with a rubric only. Subclasses set `name`, and override the members below that they support."""

    name = ""
    subtasks: tuple[str, ...] = ()  # in the order of tables; (): the subtasks of the queries
    held_out: tuple[str, ...] = ()  # subtasks that are only tested, unless `rl.subtasks` names them
    compares_splits = False  # True: `splits` checks by itself that splits share no task
    sources: tuple[Path, ...] = ()  # the code of `splits`; data/prepare.py runs again when it changes

    def __init__(self, environment: EnvironmentConfig, data: DataConfig):
        self.environment, self.data = environment, data

    @property
    def is_own(self) -> bool:
        """True if `environment.domain` names a class of the user."""
        return ":" in self.environment.domain

    # (query, messages) -> the truth about the trajectory; called only for queries with `has_truth`
    examine: Callable[[Query, list[dict[str, Any]]], Truth] | None = None
    # (environment, watch, client) -> the splits; `client` calls LLMs if the data needs one
    splits: Callable[[Environment, Watch, LLMClient | None], Iterator[Split]] | None = None
    # (query, environment, rng, skill) -> a trajectory of the scripted teacher
    solve: Callable[..., Trajectory] | None = None

    def examine_view(self, query: Query, messages: list[dict[str, Any]]) -> Truth:
        """Examine a view without tool results: the answer alone, or thoughts, calls and answer.

        Stated facts that such a view cannot check count as true.
        """
        return needs(self, "examine", "a judge's view needs")(query, messages)

    def has_truth(self, query: Query) -> bool:
        """Return False if the query's constraints lack something that `examine` reads, as in a user's own queries."""
        return True

    def constraints_of(self, subtask: str) -> type[BaseModel] | None:
        """Return the schema by which an LLM extracts the constraints from a query's text; None without one."""
        return None

    def contradictions(self, query: Query, trajectory: Trajectory) -> list[str]:
        """Return one sentence for each constraint that the answer's own words break, without using the truth."""
        return []

    @property
    def has_own_queries(self) -> bool:
        """True if `data.folder` holds the user's own queries, without a manifest from data/prepare.py."""
        folder = Path(self.data.folder)
        return any(folder.glob("*_queries.jsonl")) and manifest_of(folder) is None

    def subtasks_of(self, queries: Iterable[Query]) -> tuple[str, ...]:
        """Return the domain's subtasks, then further subtasks of the queries."""
        return tuple(dict.fromkeys([*self.subtasks, *(query.subtask for query in queries)]))

    def spread_over_subtasks(self, queries: list[Query], count: int) -> list[Query]:
        """Return the first `count` queries, alternating between the subtasks."""
        by_subtask = [[query for query in queries if query.subtask == subtask] for subtask in self.subtasks_of(queries)]
        return [query for turn in zip_longest(*by_subtask) for query in turn if query][:count]

    def read_split(self, name: str) -> list[Query]:
        """Read `<data.folder>/<name>_queries.jsonl`.

        Raises UserError for queries of another domain or config, and for a language without a sound rubric. Test
        queries have one table, so the rubrics of all their languages must have the same dimensions.
        """
        refuse_other_data(self.data, self.environment, name)
        path = Path(self.data.folder) / f"{name}_queries.jsonl"
        queries = read_queries(path)
        if other := next((query for query in queries if query.domain != self.name), None):
            what = f"query {other.query_id} is of the domain {other.domain}, but environment.domain is {self.name}"
            raise UserError(f"{path}: {what}; change one of them")
        languages = dict.fromkeys(query.language for query in queries)
        rubrics = {domain_rubric(self.name, language).names: language for language in languages}
        if name == "test" and len(rubrics) > 1:
            what = "; ".join(f"{language}: {', '.join(names)}" for names, language in rubrics.items())
            how = "give them the same dimensions in the same order, or test one language"
            raise UserError(f"{path}: the rubrics of its languages have different dimensions ({what}); {how}")
        if self.has_own_queries or self.data.source:
            self._check_language(path, queries)
        return queries

    def _check_language(self, path: Path, queries: Sequence[Query]) -> None:
        """Raise UserError if no query states `data.language`; print a line if some do not, or if no text is in it.

        Only zh has its own prompts and tools; all other languages have the English ones.
        """
        wanted = self.data.language
        others = sum((query.language == "zh") != (wanted == "zh") for query in queries)
        what = f"data.language={wanted}, the language of prompts and tools"
        if others == len(queries):
            raise UserError(f"{path}: no query is in {what}; set data.language={'en' if wanted == 'zh' else 'zh'}")
        if not others and all(language_of(query.query) != wanted for query in queries):
            others = len(queries)
        if others:
            say_once(f"{path}: {others} of {len(queries)} queries are not in {what}")

    def read_test_set(self) -> tuple[list[Query], dict[str, Trajectory]]:
        """Return the test queries, and their stored baselines by query id if the file exists.

        Raises UserError for a baseline without a query id, a query with two baselines, or a query without a baseline.
        """
        queries, path = self.read_split("test"), Path(self.data.folder) / "test_baselines.jsonl"
        if not path.is_file():
            return queries, {}
        baselines: dict[str, Trajectory] = {}
        for number, record in enumerate(read_trajectories(path), start=1):
            if not isinstance(query_id := record.get("query_id"), str):
                raise UserError(f"{path}, record {number}: query_id must be the id of a test query, a text")
            if query_id in baselines:
                raise UserError(f"{path}, record {number}: query {query_id} already has a baseline; delete one")
            baselines[query_id] = Trajectory.from_record(record)
        if missing := [query.query_id for query in queries if query.query_id not in baselines]:
            what = f"{len(missing)} test queries have no baseline, first {missing[0]}"
            own = "add them, or delete the file to compare with the first policy"
            raise UserError(f"{path}: {what}; {own if self.has_own_queries else 'prepare the data again'}")
        if unanswered := sum(not baseline.valid for baseline in baselines.values()):
            say(f"{path}: {unanswered} of {len(baselines)} baselines have no answer; put it in <answer> … </answer>")
        return queries, baselines

    def _draw_splits(self, environment: Environment, watch: Watch, make: Callable[..., list[Query]]) -> Iterator[Split]:
        """Draw the queries of all splits (Table 1), spread evenly over the subtasks; return `make_splits` with them.

        `make(subtask=…, count=…, seed=…)` draws queries. SFT gets none of the held-out subtasks.
        """
        data = self.data

        def draw(split: str, count: int) -> list[Query]:
            seed, held_out = f"{self.name}{data.seed}-{split}", self.held_out if split == "sft" else ()
            parts = even_counts(count, [subtask for subtask in self.subtasks if subtask not in held_out])
            queries = [query for subtask, size in parts for query in make(subtask=subtask, count=size, seed=seed)]
            random.Random(seed).shuffle(queries)
            return queries

        test = draw("test", len(self.subtasks) * data.test_per_subtask)
        return self.make_splits(environment, watch, test, draw("rl", data.rl_size), draw("sft", data.sft_size))

    def make_splits(
        self, environment: Environment, watch: Watch, test: list[Query], rl: list[Query], sft: list[Query]
    ) -> Iterator[Split]:
        """Yield the splits by file name: test queries, stored baselines, RL queries, SFT trajectories.

        The teacher solves the test and SFT queries. A stored baseline is the attempt of median quality.
        """
        solve = needs(self, "solve", "make_splits calls")
        needs(self, "examine", "make_splits calls")  # `_quality` calls it; refused before the first split
        data, seed, baselines = self.data, f"{self.name}{self.data.seed}", []
        yield "test_queries", test
        rng = random.Random(f"{seed}-baselines")
        for query in watch(test):
            attempts = [solve(query, environment, rng, data.baseline_skill) for _ in range(data.baseline_attempts)]
            quality = [self._quality(query, attempt) for attempt in attempts]
            baselines.append(median_of(attempts, quality).to_record())
        yield "test_baselines", baselines
        yield "rl_queries", rl
        rng = random.Random(f"{seed}-teacher")
        skills = [1.0 if rng.random() < data.careful_share else data.teacher_skill for _ in sft]
        pairs = zip(watch(sft), skills, strict=True)
        yield "sft", [solve(query, environment, rng, skill).to_record() for query, skill in pairs]

    def _quality(self, query: Query, trajectory: Trajectory) -> float:
        """Return the quality of a teacher's trajectory: the rubric's total by the truth."""
        truth = needs(self, "examine", "make_splits calls")(query, trajectory.messages)
        return domain_rubric(query.domain, query.language).total(truth.dimensions())


def make_domain(environment: EnvironmentConfig, data: DataConfig) -> Domain:
    """Create the domain that `environment.domain` names: one of DOMAINS, package.module:Class, or a rubric's name.

    Raises UserError if the class cannot be imported or the rubric is missing.
    """
    name = environment.domain
    if (name in DOMAINS and not data.source) or ":" in name:  # published queries (`data.source`) have no truth
        kind = import_named(DOMAINS.get(name, name), "environment.domain")
        domain = _make_own(name, kind, environment, data) if ":" in name else kind(environment, data)
    else:
        domain = Domain(environment, data)
        domain.name = name
    domain_rubric(domain.name, data.language)
    return domain


def _make_own(name: str, kind: Any, environment: EnvironmentConfig, data: DataConfig) -> Domain:
    """Create a user's own domain; raise UserError if the class is not a Domain or has no usable name."""
    key = f"environment.domain={name}"
    if not (isinstance(kind, type) and issubclass(kind, Domain)):
        raise UserError(f"{key} must be a subclass of arenarl.domains.domain.Domain (docs/domains.md)")
    try:
        signature(kind).bind(environment, data)
    except TypeError as error:
        raise UserError(f"{key} must take (environment, data), as Domain does: {error}") from error
    domain = kind(environment, data)
    if not (isinstance(domain.name, str) and re.fullmatch(r"[\w-]+", domain.name)):
        what = "which names its queries and configs/rubrics/<name>_<language>.yaml"
        raise UserError(f"{key}: set its attribute name, {what}, to letters, digits, - or _, not {domain.name!r:.100}")
    return domain


def checked_truth(domain: Domain, query: Query, truth: Any) -> Truth:
    """Return the truth; raise UserError if a user's own domain does not score the rubric's dimensions from 0 to 10."""
    if not domain.is_own:
        return truth
    key = f"environment.domain={domain.environment.domain}: examine"
    if not isinstance(truth, Truth):
        raise UserError(f"{key} must return a Truth for each trajectory, not {truth!r:.100} (query {query.query_id})")
    scores, names = truth.dimensions(), domain_rubric(query.domain, query.language).names
    if not isinstance(scores, dict) or set(scores) != set(names):
        raise UserError(f"{key} must score the rubric's dimensions {', '.join(names)}, not {scores!r:.200}")
    for name, score in scores.items():
        if (number := as_number(score)) is None or not 0 <= number <= 10:
            raise UserError(f"{key} scores {name} {score!r:.100} for query {query.query_id}; it must be from 0 to 10")
    return truth


def require_sound_truth(domain: Domain, query: Query, messages: list[dict[str, Any]]) -> None:
    """Raise UserError, also for an error in its code, if a user's own domain has no sound truth about a trajectory.
    Evaluation stores the findings as JSON, after it has generated the trajectories."""
    if not domain.is_own or domain.examine is None:
        return
    try:
        if domain.has_truth(query):
            truth = checked_truth(domain, query, domain.examine(query, messages))
            json.dumps([truth.findings(), list(truth.passes()), [float(value) for value in truth.figures().values()]])
    except UserError:
        raise
    except Exception as error:
        problem = f"its truth about an invented answer to query {query.query_id} fails with {error!r:.200}"
        raise UserError(f"environment.domain={domain.environment.domain}: {problem}") from error


def median_of(trajectories: Sequence[Trajectory], quality: Sequence[float]) -> Trajectory:
    """Return the trajectory of median quality, or the better of the two in the middle. Equal ones keep their order."""
    return trajectories[sorted(range(len(trajectories)), key=lambda index: quality[index])[len(trajectories) // 2]]


def even_counts(count: int, parts: Sequence[T]) -> list[tuple[T, int]]:
    """Spread `count` over the parts; the first parts take the remainder.

    >>> even_counts(5, ["a", "b", "c"])
    [('a', 2), ('b', 2), ('c', 1)]
    """
    each, rest = divmod(count, len(parts))
    return [(part, each + (index < rest)) for index, part in enumerate(parts)]


def draw_new(
    draw: Callable[[int], Query | None], count: int, taken: set[str],
    remedy: str = "lower data.rl_size, data.sft_size or data.test_per_subtask",
) -> list[Query]:  # fmt: skip
    """Return `count` queries of `draw(number)` whose texts are not in `taken`, and add the texts to it.

    `draw` returns None if a draw yields no query. Raises UserError after `MOST_FAILURES` draws without a new query.
    """
    queries: list[Query] = []
    failures = 0
    while len(queries) < count:
        query = draw(len(queries))
        if query and query.query not in taken:
            taken.add(query.query)
            queries.append(query)
            failures = 0
        elif (failures := failures + 1) > MOST_FAILURES:
            raise UserError(f"only {len(queries)} of {count} different queries could be drawn: {remedy}")
    return queries


def needs(domain: Domain, part: str, purpose: str) -> Any:
    """Return an optional member of the domain; raise UserError if it is None."""
    if (member := getattr(domain, part)) is None:
        own = "a class with this member: package.module:Class (docs/domains.md, Bring your own environment)"
        choice = f"choose one of {', '.join(DOMAINS)}, or write {own}"
        raise UserError(f"environment.domain={domain.name} has no {part}, which {purpose}; {choice}")
    return member
