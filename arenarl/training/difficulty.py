"""Measure the SFT policy's pass rate on each RL query with a known answer (4.1, InfoAgent).

    python -m arenarl.training.difficulty --config configs/research/quickstart.yaml

With torchrun, several processes share the queries.

Samples `rl.difficulty.samples` trajectories of every query with a known answer and writes the share of correct ones to
runs/<run>/difficulty/pass_rates.jsonl, where <run> is the SFT policy's. With `rl.difficulty.filter`, RL trains only on
queries with pass rates from `low` to `high`: it can learn from these. After a kill, the command resumes from the last
complete batch; with another policy or other settings it starts over.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from arenarl.config.command_line import parse_arguments
from arenarl.config.schema import Config
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import environment_maker
from arenarl.domains.known_answers import has_answer
from arenarl.judges.verifier import Verifier
from arenarl.llm.client import open_client
from arenarl.rollout.system_prompt import system_prompt
from arenarl.run.marks import MARK, damage, write_mark
from arenarl.run.settings import settings_of
from arenarl.run.weights import hash_weights
from arenarl.system.atomic_files import json_hash, read_json, write_json
from arenarl.system.errors import UserError, keep_tracebacks, run_cli
from arenarl.system.own_code import code_hashes
from arenarl.system.progress import Bar, is_main_process, say
from arenarl.system.prompt_files import prompt_hashes
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, write_jsonl

if TYPE_CHECKING:
    from arenarl.rollout.engine import RolloutEngine

BATCH = 64  # queries per write of the file


def pass_rates(
    engine: "RolloutEngine", verifier: Verifier, queries: Sequence[Query], config: Config
) -> list[dict[str, Any]]:
    """Return a record per query: `query_id`, the hash of its `task`, and `pass_rate`, None where a verdict is
    missing."""
    from arenarl.rollout.engine import Attempt

    samples = config.rl.difficulty.samples
    attempts = [
        Attempt(query, config.rollout.temperature, stable_seed(config.seed, "difficulty", query.query_id, sample))
        for query in queries
        for sample in range(samples)
    ]
    trajectories = engine.roll_out(attempts)

    async def verify() -> list[bool | None]:
        pairs = zip(attempts, trajectories, strict=True)
        return await asyncio.gather(*(verifier.is_correct(attempt.query, trajectory) for attempt, trajectory in pairs))

    verdicts = asyncio.run(verify())
    by_query = [verdicts[index : index + samples] for index in range(0, len(verdicts), samples)]
    rates = [None if None in of_query else sum(of_query) / samples for of_query in by_query]
    return [
        {"query_id": query.query_id, "task": json_hash(query.task), "pass_rate": rate}
        for query, rate in zip(queries, rates, strict=True)
    ]


def rate_settings(config: Config, policy: str) -> dict[str, Any]:
    """Return everything that pass rates depend on, except the queries."""
    settings = settings_of("rl", config)
    return {
        "policy": hash_weights(policy),
        "dtype": config.policy.dtype,
        "samples": config.rl.difficulty.samples,
        "told": system_prompt(config),
        **{key: settings[key] for key in ("seed", "data", "environment", "rollout")},
        "verifier": settings["judge"]["verifier"],
        **code_hashes(settings["environment"]),
        **prompt_hashes(config.prompts.folder),
    }


def measure(config: Config) -> None:
    """Measure the missing pass rates, and print how many queries are kept. Raises UserError if none has an answer."""
    from accelerate import PartialState  # after the arguments are parsed: torch and transformers load for seconds
    from accelerate.utils import gather_object

    from arenarl.rollout.backends import make_policy_engine, require_backend
    from arenarl.rollout.policy import require_model
    from arenarl.run.processes import join_processes, own_share
    from arenarl.run.stage import fix_randomness, lock_folder
    from arenarl.training.queries import pass_rate_file, read_rates, training_queries

    difficulty, path = config.rl.difficulty, config.pass_rates
    join_processes(config)
    policy = require_model(config.sft_policy)
    require_backend(config.rollout, policy, config.policy.dtype)
    domain = make_domain(config.environment, config.data)
    queries = [query for query in training_queries(domain, config.rl, config.reward.name, None) if has_answer(query)]
    if not queries:
        problem = "has no query with a known answer among rl.subtasks, so no pass rate can be measured"
        raise UserError(f"{config.data.folder}/rl_queries.jsonl {problem}; leave rl.difficulty.filter out")
    settings = rate_settings(config, policy)
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_main_process():
        lock_folder(path.parent)
    keep_tracebacks(path.parent)
    is_current = read_json(path.parent / "settings.json") == settings
    if problem := damage(path.parent, pass_rate_file):
        say(f"{path.parent} is damaged: {problem}; measuring all pass rates again")
        is_current = False
    records = read_rates(path, queries) if is_current else {}
    fix_randomness(config)
    PartialState().wait_for_everyone()  # all processes have read the file
    if is_main_process():
        (path.parent / MARK).unlink(missing_ok=True)
        if not is_current:
            path.unlink(missing_ok=True)
            write_json(path.parent / "settings.json", settings)
    client = open_client(config.llms_of("difficulty"), config.judge, f"{config.run_name}/difficulty")
    make_environment = environment_maker(config.environment, config.data.language, client, config.judge)
    engine = make_policy_engine(config, policy, make_environment, client)
    missing = [query for query in queries if query.query_id not in records]
    engine.require_room(missing)
    with Bar("difficulty", len(queries), len(queries) - len(missing)) as bar:
        for start in range(0, len(missing), BATCH):
            batch = missing[start : start + BATCH]
            share = pass_rates(engine, Verifier(config.judge.verifier, client), own_share(batch), config)
            if client:
                client.check()
            records |= {record["query_id"]: record for record in gather_object(share)}
            if is_main_process():
                first = {query.query_id: records[query.query_id] for query in queries if query.query_id in records}
                write_jsonl(path, (first | records).values())  # runs with other rl.subtasks share the file
            bar.update(len(batch))
    if is_main_process():
        write_mark(path.parent, pass_rate_file)
    rates = [records[query.query_id]["pass_rate"] for query in queries]
    kept = sum(rate is not None and difficulty.low <= rate <= difficulty.high for rate in rates)
    never, always = rates.count(0.0), rates.count(1.0)
    say(f"{kept} of {len(rates)} queries with a known answer are kept; {never} were never answered, {always} always")
    say(f"written: {path}; with rl.difficulty.filter=true, RL trains on the kept queries")


if __name__ == "__main__":
    run_cli(lambda: measure(parse_arguments(__doc__)[0]))
