"""The judges that `judge.train`, `judge.eval` and `judge.watch` name.
What does not fit the domain is refused here, before any work."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from arenarl.config.schema import Config, JudgeConfig
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
    """A judge; an embedded one's noise derives from the run's seed and its purpose.

    Raises:
        UserError: the class that `name` names cannot be had, or the embedded judge has no truth to score against.
    """
    if config.name == "llm":
        rubric = _query_rubrics(Path(config.query_rubrics), domain) if config.query_rubrics else rubric_of
        return LLMJudge(config, client, rubric)
    if config.name == "embedded":
        if domain.data.source:
            problem = "published queries (data.source) have no truth for the embedded judge"
            raise UserError(f"judge: {problem}; take an LLM judge, such as configs/judges/qwen3_max.yaml")
        needs(domain, "examine", "the embedded judge scores by; take another judge (configs/judges), or another domain")
        return EmbeddedJudge(config, examine, stable_seed(seed, "judge", purpose))
    return OwnJudge.of(config)


def make_judges(
    configs: Sequence[JudgeConfig],
    domain: Domain,
    examine: Examiner | None,
    client: LLMClient | None = None,
    seed: int = 0,
) -> list[Judge]:
    """The judges of `judge.eval`, each with noise of its own."""
    return [make_judge(config, domain, examine, client, seed, f"eval{index}") for index, config in enumerate(configs)]


def refuse_without_truth(key: str, judges: Iterable[JudgeConfig], domain: Domain, queries: Sequence[Query]) -> None:
    """Raises UserError if an embedded judge is to score trajectories of queries without a truth."""
    missing = [query.query_id for query in queries if not domain.has_truth(query)]
    if missing and any(judge.name == "embedded" for judge in judges):
        those = f"{len(missing)} of {len(queries)} queries, first {missing[0]},"
        raise UserError(f"{key}: {those} have no truth for the embedded judge: {NO_TRUTH}")


def refuse_answers_alone(config: Config, is_training: bool) -> None:
    """Refuse answer-only judging by a built-in judge in worlds whose trajectories end without an answer.

    Raises:
        UserError: with the key to change.
    """
    if trait(environment_class(config.environment.name), "needs_answer"):
        return
    problem = f"trajectories in {config.environment.name} end without an answer"
    if is_training and config.judge.train.name in _BUILT_IN and config.reward.name == "pointwise_answer":
        raise UserError(f"reward.name=pointwise_answer: {problem}; set pointwise_trajectory")
    judges = {f"judge.eval.{index}": judge for index, judge in enumerate(config.judge.eval)}
    if is_training:
        judges |= {"judge.train": config.judge.train} | config.judge.watching
    for key, judge in judges.items():
        if judge.name in _BUILT_IN and not judge.process_aware:
            raise UserError(f"{key}.process_aware=false: {problem}; set it to true")


def refuse_without_checklist(reward: str, judge: Judge, queries: Sequence[Query]) -> None:
    """Raises UserError if the reward goes by checklists, and the judge has none for a query."""
    for query in queries if reward == "rubric_checklist" else ():
        judge.checklist(query)


def _query_rubrics(path: Path, domain: Domain) -> Callable[[Query], Rubric]:
    """The written rubric of a query. Raises UserError if a query of the RL split has none."""
    rubrics = read_query_rubrics(path)
    missing = [query.query_id for query in domain.read_split("rl") if query.query_id not in rubrics]
    if missing:
        command = "python -m arenarl.judges.query_rubrics"
        raise UserError(f"{path} lacks {len(missing)} rubrics, first {missing[0]}; write them with {command}")

    def written_rubric(query: Query) -> Rubric:
        if query.query_id not in rubrics:
            advice = "leave query_rubrics out where others are judged"
            raise UserError(f"{path} has no rubric for query {query.query_id}, which is not of RL's; {advice}")
        return rubrics[query.query_id]

    return written_rubric
