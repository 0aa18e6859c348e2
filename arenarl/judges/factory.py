"""Build the judges of a config's section `judge`, and reject judges that do not fit the domain."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config, JudgeConfig, JudgesConfig
from arenarl.domains.domain import Domain, needs
from arenarl.domains.environments import environment_class
from arenarl.domains.rubrics import Rubric
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.judge import NO_TRUTH, Examiner, Judge, rubric_of
from arenarl.judges.llm import LLMJudge
from arenarl.judges.own import OwnJudge
from arenarl.judges.query_rubrics import read_query_rubrics
from arenarl.llm.client import LLMClient
from arenarl.rollout.environment import trait
from arenarl.system.errors import UserError
from arenarl.system.repository import file_named
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query

_BUILT_IN = ("embedded", "llm")


def make_judge(
    config: JudgeConfig,
    domain: Domain,
    examine: Examiner | None,
    client: LLMClient | None = None,
    seed: int = 0,
    purpose: str = "train",
) -> Judge:
    """Return the judge of a config. The simulated judge's noise depends on `seed` and `purpose`.
    Raises UserError if the judge's class cannot be imported, or the simulated judge finds no truth in the domain."""
    if config.name == "llm":
        rubric = _query_rubrics(file_named(config.query_rubrics), domain) if config.query_rubrics else rubric_of
        return LLMJudge(config, client, rubric)
    if config.name == "embedded":
        if domain.data.source:
            problem = "published queries (data.source) have no truth for the embedded judge"
            raise UserError(f"judge: {problem}; use an LLM judge, such as configs/judges/qwen3_max.yaml")
        needs(domain, "examine", "the embedded judge scores by; take another judge (configs/judges), or another domain")
        return EmbeddedJudge(config, examine, stable_seed(seed, "judge", purpose))
    return OwnJudge.of(config)


def make_training_judges(
    config: JudgesConfig, domain: Domain, examine: Examiner | None, client: LLMClient | None, seed: int
) -> dict[str, Judge]:
    """Return the judges of `judge.train` and `judge.alternates` by their keys."""
    return {
        key: make_judge(judge, domain, examine, client, seed, key.removeprefix("judge."))
        for key, judge in config.training.items()
    }


class AlternatingJudge:
    """Several training judges (`judge.alternates`): passes each call to the judge of its query, drawn by `seed`.
    A policy must please all judges; one judge scores a whole group, so a group costs no further calls."""

    def __init__(self, judges: Sequence[Judge], seed: int):
        self.judges, self.seed = judges, seed

    def judge_of(self, query: Query) -> Judge:
        return self.judges[stable_seed(self.seed, "judge of", query.query_id) % len(self.judges)]

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if not hasattr(Judge, method):
            raise AttributeError(method)
        return lambda query, *arguments, **options: getattr(self.judge_of(query), method)(query, *arguments, **options)


def make_judges(
    configs: Sequence[JudgeConfig], domain: Domain, examine: Examiner | None, client: LLMClient | None, seed: int
) -> list[Judge]:
    """Return the judges of `judge.eval`; simulated judges have independent noise."""
    return [make_judge(config, domain, examine, client, seed, f"eval{index}") for index, config in enumerate(configs)]


def refuse_without_truth(key: str, judges: Iterable[JudgeConfig], domain: Domain, queries: Sequence[Query]) -> None:
    """Raise UserError if a simulated judge would score queries without a truth."""
    missing = [query.query_id for query in queries if not domain.has_truth(query)]
    if missing and any(judge.name == "embedded" for judge in judges):
        count = f"{len(missing)} of {len(queries)} queries, first {missing[0]},"
        raise UserError(f"{key}: {count} have no truth for the embedded judge: {NO_TRUTH}")


def refuse_answers_alone(config: Config, is_training: bool) -> None:
    """Raise UserError if a built-in judge would see only answers, but trajectories end without an answer."""
    if trait(environment_class(config.environment.name), "needs_answer"):
        return
    problem = f"trajectories in {config.environment.name} end without an answer"
    has_built_in = any(judge.name in _BUILT_IN for judge in config.judge.training.values())
    if is_training and has_built_in and config.reward.name == "pointwise_answer":
        raise UserError(f"reward.name=pointwise_answer: {problem}; set it to pointwise_trajectory")
    judges = {f"judge.eval.{index}": judge for index, judge in enumerate(config.judge.eval)}
    if is_training:
        judges |= config.judge.training | config.judge.watching
    for key, judge in judges.items():
        if judge.name in _BUILT_IN and not judge.process_aware:
            raise UserError(f"{key}.process_aware=false: {problem}; set it to true")


def refuse_without_checklist(reward: str, judge: Judge, queries: Sequence[Query]) -> None:
    """Raise UserError if the reward needs checklists and the judge lacks the checklist of a query."""
    for query in queries if reward in ("rubric_checklist", "evolving_rubrics") else ():
        judge.checklist(query)


def _query_rubrics(path: Path, domain: Domain) -> Callable[[Query], Rubric]:
    """Return a function from a query to its written rubric. Raises UserError if an RL query has none."""
    queries = domain.read_split("rl")
    rubrics = read_query_rubrics(path, queries)
    if missing := [query.query_id for query in queries if query.query_id not in rubrics]:
        command = "python -m arenarl.judges.query_rubrics"
        raise UserError(f"{path} lacks {len(missing)} rubrics, first {missing[0]}; write them with {command}")

    def written_rubric(query: Query) -> Rubric:
        if query.query_id not in rubrics:
            problem = f"{path} has no rubric for query {query.query_id}, which is not in the RL split"
            raise UserError(f"{problem}; remove query_rubrics from this judge")
        return rubrics[query.query_id]

    return written_rubric
