"""Select the queries that RL trains on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arenarl.config.schema import DifficultyConfig, RLConfig
from arenarl.domains.domain import Domain
from arenarl.domains.known_answers import has_answer
from arenarl.run.marks import damage
from arenarl.run.weights import hash_weights
from arenarl.system.atomic_files import json_hash, read_json
from arenarl.system.errors import UserError, one_line
from arenarl.system.progress import is_main_process
from arenarl.training.rewards import REWARDS
from arenarl.trajectory import Query, read_jsonl


def training_queries(domain: Domain, rl: RLConfig, reward: str, pass_rates: Path | None) -> list[Query]:
    """Return the RL split without held-out subtasks (travel: M-Day) and without queries of the wrong difficulty.

    `rl.subtasks` replaces the default choice of subtasks, and may include held-out subtasks. Without `pass_rates`, as
    before the policy that measures them exists, all difficulties are right. Raises UserError if a subtask has no
    queries, the reward needs known answers that are missing, or too few queries are left.
    """
    queries, path = domain.read_split("rl"), Path(domain.data.folder) / "rl_queries.jsonl"
    present = {query.subtask for query in queries}  # a user's data may lack subtasks of the domain
    known = [subtask for subtask in domain.subtasks_of(queries) if subtask in present]
    wanted = rl.subtasks or [subtask for subtask in known if subtask not in domain.held_out]
    if unknown := sorted(set(wanted) - present):
        raise UserError(f"rl.subtasks: {path} has no query of {', '.join(unknown)}; choose from {', '.join(known)}")
    queries = [query for query in queries if query.subtask in wanted]
    unanswered = [query for query in queries if not has_answer(query)]
    if unanswered and reward in REWARDS and REWARDS[reward].needs_answers:
        raise UserError(
            f"reward.name={reward} needs known answers, but {path} has {len(unanswered)} queries without one, "
            f"first {unanswered[0].query_id} of {unanswered[0].subtask}; set rl.subtasks, "
            "or reward.name=correctness_or_tournament"
        )
    is_filtered = rl.difficulty.filter and pass_rates is not None
    if is_filtered:
        queries = of_right_difficulty(queries, rl.difficulty, pass_rates)
    if len(queries) < rl.groups:
        held_out = ", ".join(domain.held_out)
        raise UserError(
            f"{path} has {len(queries)} queries of {', '.join(wanted) or f'other subtasks than {held_out}, held out'}"
            f"{' of the right difficulty' * is_filtered}, fewer than rl.groups={rl.groups}; "
            "change rl.subtasks, rl.difficulty or rl.groups, or prepare more data"
        )
    return queries


def of_right_difficulty(queries: list[Query], bounds: DifficultyConfig, path: Path) -> list[Query]:
    """Return the queries without a known answer, and those whose pass rate is within `bounds` (4.1, InfoAgent).

    Raises UserError if pass rates are missing.
    """
    if problem := damage(path.parent, pass_rate_file):
        how = "restore it, or run python -m arenarl.training.difficulty again"
        raise UserError(f"rl.difficulty.filter: {path.parent} is damaged: {problem}; {how}")
    rates = {query_id: record["pass_rate"] for query_id, record in read_rates(path, queries).items()}
    closed = [query.query_id for query in queries if has_answer(query)]
    if missing := [query_id for query_id in closed if query_id not in rates]:
        raise UserError(
            f"rl.difficulty.filter: {path} lacks {len(missing)} of {len(closed)} pass rates; "
            "run python -m arenarl.training.difficulty"
        )
    known = {query_id: rates[query_id] for query_id in closed if rates[query_id] is not None}
    kept = {query_id for query_id, rate in known.items() if bounds.low <= rate <= bounds.high}
    return [query for query in queries if not has_answer(query) or query.query_id in kept]


def read_rates(path: Path, queries: Sequence[Query]) -> dict[str, dict[str, Any]]:
    """Return the file's records by query: `query_id`, `pass_rate`, None where a verdict is missing, and `task`, which
    files of earlier versions lack.

    The record of a query whose task has changed since is left out. Raises UserError for a line without a rate.
    """
    records, tasks = {}, {query.query_id: json_hash(query.task) for query in queries}
    for record in read_jsonl(path) if path.is_file() else ():
        match record:
            case {"query_id": str(query_id), "pass_rate": None | int() | float() as rate} if 0 <= (rate or 0) <= 1:
                if query_id not in tasks or record.get("task", tasks[query_id]) == tasks[query_id]:
                    records[query_id] = record
            case _:
                what = f"{one_line(record)} is not an object with query_id and a pass_rate from 0 to 1, or null"
                raise UserError(f"{path}: {what}; correct it, or run python -m arenarl.training.difficulty")
    return records


def pass_rate_file(name: str) -> bool:
    """True for the files that measuring pass rates writes."""
    return name in ("pass_rates.jsonl", "settings.json")


def refuse_other_pass_rates(rl: RLConfig, path: Path, policy: str) -> None:
    """Raise UserError, on the main process, if the pass rates were measured with other weights than the policy's."""
    is_used = rl.difficulty.filter and is_main_process()
    settings = read_json(path.parent / "settings.json", dict[str, Any]) if is_used else None
    if settings is not None and settings.get("policy") != hash_weights(policy):
        raise UserError(
            f"rl.difficulty.filter: {path} was measured with other weights than {policy} has; "
            "run python -m arenarl.training.difficulty again"
        )
