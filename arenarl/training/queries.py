"""Which queries RL trains on."""

from pathlib import Path

from arenarl.config.schema import DifficultyConfig, RLConfig
from arenarl.domains.domain import Domain
from arenarl.domains.known_answers import has_answer
from arenarl.run.weights import hash_weights
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import UserError
from arenarl.system.progress import is_main_process
from arenarl.training.rewards import REWARDS
from arenarl.trajectory import Query, read_jsonl


def training_queries(domain: Domain, rl: RLConfig, reward: str, pass_rates: Path) -> list[Query]:
    """The RL split, without what the domain holds out (travel: M-Day) unless `rl.subtasks` names it, nor what
    `rl.difficulty` leaves out.

    Raises:
        UserError: a subtask is unknown, the method `reward` needs answers that are not known, too few queries are left.
    """
    queries, path = domain.read_split("rl"), Path(domain.data.folder) / "rl_queries.jsonl"
    known = domain.subtasks_of(queries)
    had = {query.subtask for query in queries}  # data of one's own may lack what the domain knows
    wanted = rl.subtasks or [subtask for subtask in known if subtask in had and subtask not in domain.held_out]
    if unknown := sorted(set(wanted) - set(known)):
        raise UserError(f"rl.subtasks: unknown {', '.join(unknown)}; known: {', '.join(known)}")
    queries = [query for query in queries if query.subtask in wanted]
    open_ended = [query for query in queries if not has_answer(query)]
    if open_ended and reward in REWARDS and REWARDS[reward].needs_answers:
        raise UserError(
            f"reward.name={reward} needs a known answer, and {path} has {len(open_ended)} queries without, "
            f"first {open_ended[0].query_id} of {open_ended[0].subtask}; set rl.subtasks, "
            "or reward.name=correctness_or_tournament"
        )
    if rl.difficulty.filter:
        queries = of_right_difficulty(queries, rl.difficulty, pass_rates)
    if len(queries) < rl.groups:
        raise UserError(
            f"{path} has {len(queries)} queries of {', '.join(wanted)}"
            f"{' of the right difficulty' * rl.difficulty.filter}, fewer than rl.groups={rl.groups}; "
            "change rl.subtasks, rl.difficulty or rl.groups, or prepare more data"
        )
    return queries


def of_right_difficulty(queries: list[Query], bounds: DifficultyConfig, path: Path) -> list[Query]:
    """Those without a known answer, and those that the SFT policy answers neither never nor always (4.1, InfoAgent).

    Raises:
        UserError: pass rates are missing.
    """
    rates = {record["query_id"]: record["pass_rate"] for record in read_jsonl(path)} if path.is_file() else {}
    closed = [query for query in queries if has_answer(query)]
    if missing := [query for query in closed if query.query_id not in rates]:
        raise UserError(
            f"rl.difficulty.filter: {path} lacks {len(missing)} of {len(closed)} pass rates; "
            "python -m arenarl.training.difficulty finds them"
        )

    def is_kept(query: Query) -> bool:
        rate = rates.get(query.query_id)
        return not has_answer(query) or (rate is not None and bounds.low <= rate <= bounds.high)

    return [query for query in queries if is_kept(query)]


def refuse_other_pass_rates(rl: RLConfig, path: Path, policy: str) -> None:
    """Raises UserError, on the main process, if queries were chosen by the pass rates of other weights than the policy
    has now."""
    settings = read_json(path.parent / "settings.json") if rl.difficulty.filter and is_main_process() else None
    if settings and settings["policy"] != hash_weights(policy):
        raise UserError(
            f"rl.difficulty.filter: {path} is of other weights than {policy} has; "
            "python -m arenarl.training.difficulty finds its own"
        )
