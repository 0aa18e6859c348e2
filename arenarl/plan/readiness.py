"""Checks before work starts: prompt lengths, disk and plan, and a reply of each LLM and judge.

Each judge gives one verdict on invented answers per method that the stage calls. Calls of LLMs are paid and stored like
all others. Calls for RL are never answered from the store, calls for evaluation may be.
"""

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TypeVar

from arenarl.config.schema import Config, LLMConfig
from arenarl.domains.domain import Domain, require_sound_truth
from arenarl.domains.known_answers import has_answer
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.judge import Judge
from arenarl.judges.llm import LLMJudge
from arenarl.judges.verifier import Verifier
from arenarl.llm.client import LLMClient, NoReply
from arenarl.llm.requests import probe_request
from arenarl.plan.estimate import Call, JudgeRecorder, group_of_copies, reward_invented
from arenarl.plan.memory import gb
from arenarl.plan.stage import Stage
from arenarl.rollout.engine import RolloutEngine
from arenarl.system.errors import UserError
from arenarl.system.progress import is_main_process, process_count, say
from arenarl.trajectory import Query, RolloutGroup, Trajectory, prompt_messages

PATIENCE_S = 30.0  # maximum time of retries if a judge does not reply
AnyLLM = TypeVar("AnyLLM", bound=LLMConfig)
CHECKPOINTS = 3  # on the disk at once: two complete ones and the one being written


def check_readiness(
    config: Config, folder: Path, queries: Sequence[Query], engine: RolloutEngine, is_check: bool = True
) -> None:
    """Check prompts and disk. With `is_check`, print a line for each, and the plan.
    A plan that does not fit is only printed: training may use other GPUs.
    Raises UserError if a trajectory is longer than the model reads, or the disk is too small."""

    def report(line: str) -> None:
        if is_check:
            say(line)

    prompt, budget = engine.require_room(queries), config.rollout.max_tokens
    if prompt is None:
        report("prompts: not checked, as the model's config names no longest sequence")
    else:
        report(f"prompts: at most {prompt:,} tokens, with rollout.max_tokens {prompt + budget:,} of {engine.limit}")
    stage = Stage(config, "rl", process_count())
    try:
        _ = stage.shape
    except UserError as error:
        report(f"plan and disk: not checked: {error}")
        return
    if is_check:
        gpus = f"{stage.gpus} GPU{'s' * (stage.gpus > 1)} of {stage.gpu.memory_gb:g} GB"
        report(f"plan for {gpus}: {'; '.join(stage.misfits) or 'fits'}; for other GPUs: python -m arenarl.plan")
        if stage.refusal:
            report(f"starts only without GPUs: {stage.refusal}")
    report(_check_disk(stage, folder))


def _check_disk(stage: Stage, folder: Path) -> str:
    training = replace(stage.training, gpus=1, reference=False)
    states, frozen = training.states(), training.shape.width * training.shape.parameters if training.lora_rank else 0
    checkpoint = sum(states.values()) - states["gradients"] - frozen  # LoRA's checkpoints hold only the adapter
    present = len(list(folder.glob("checkpoint-*/whole.json")))
    needed = max(CHECKPOINTS - present, 1) * checkpoint + states["parameters"]
    free = shutil.disk_usage(folder).free
    if needed > free:
        taken = f"checkpoints take up to {gb(needed)} GB, and {gb(free)} GB are free"
        raise UserError(f"{folder}: {taken}; free some space, or use a larger disk")
    return f"disk: checkpoints take up to {gb(needed)} of {gb(free)} GB"


def check_judges(
    config: Config,
    stage: str,
    judges: Mapping[str, Judge],
    domain: Domain,
    queries: Sequence[Query],
    client: LLMClient | None,
) -> None:
    """Ask each judge, by key, for one verdict per method that the stage calls, and each other LLM for one reply.

    RL asks at each start. Evaluation takes replies from the store, so that a rerun makes no call. The embedded judge is
    not asked. `judge.store_only` skips all LLMs, because it forbids calls.

    Raises UserError for the first judge or LLM without a reply, and for an unsound truth of a user's own domain.
    """
    query, number = queries[0], time.time_ns() if stage == "rl" else 0
    require_sound_truth(domain, query, _invented(query, 2).trajectories[0].messages)
    if not is_main_process():
        return
    for key, judge in judges.items():
        is_llm = isinstance(judge, LLMJudge)
        if isinstance(judge, EmbeddedJudge) or (is_llm and config.judge.store_only):
            continue
        for method, (arguments, options) in _calls_of(config, key, judge, query).items():
            start = time.monotonic()
            if is_llm:
                asyncio.run(_require_reply(key, judge, method, arguments, options, number))
                what = judge.config.model
            else:
                asyncio.run(judge.require(key, method, *arguments, **options))
                what = f"{judge.name}.{method}"
            print(f"{key}: a verdict of {what} in {time.monotonic() - start:.1f} s")
    if client and not config.judge.store_only:
        _check_other_llms(config, stage, queries, client, number)
        client.take_usage()  # so that it does not count in the first step


def _calls_of(config: Config, key: str, judge: Judge, query: Query) -> dict[str, Call]:
    """Return the judge's methods that the stage calls, with the arguments of the first call."""
    group = _invented(query, config.rollout.group_size)
    first, second = group.trajectories[:2]
    if key == "judge.watch":
        return {"score": ((query, first), {})}
    if key not in config.judge.training:
        calls = {"compare": ((query, first, second), {})}
        has_baselines = (Path(config.data.folder) / "test_baselines.jsonl").is_file()
        # without stored baselines, RL's curve and evaluation's first policy are scored alone
        return calls if has_baselines else calls | {"score": ((query, first), {})}
    recorder = JudgeRecorder(judge)
    try:
        reward_invented(config, recorder, [group])
    except UserError:  # a user's own reward that fails on invented trajectories: its calls are not known
        recorder.calls.clear()
    return recorder.calls


async def _require_reply(key: str, judge: LLMJudge, method: str, arguments: tuple, options: dict, number: int) -> None:
    """Make one call of an LLM judge, with little patience. Raises UserError without a verdict."""
    hasty = LLMJudge(_impatient(judge.config), judge.client, judge.rubric)
    bound = signature(getattr(hasty, method)).bind(*arguments, **options)
    bound.arguments["repeat"] = number
    verdict = await getattr(hasty, method)(*bound.args, **bound.kwargs)
    judge.client.check()
    if verdict is None:
        advice = "./reproduce.sh judge_check measures how often it does"
        raise UserError(f"{key}: {judge.config.model} gave no readable verdict ({judge.client.last_failure}); {advice}")
    judge.client.take_usage()  # not of the first step


def _impatient(llm: AnyLLM) -> AnyLLM:
    return replace(llm, patience_s=min(llm.patience_s, PATIENCE_S))


def _invented(query: Query, size: int) -> RolloutGroup:
    """Return a group of short, different answers to the query."""
    answer = {"role": "assistant", "reasoning_content": "", "content": "<answer>\nAn answer.\n</answer>"}
    return group_of_copies(query, Trajectory(query.query_id, [*prompt_messages(query), answer], "answer"), size)


def _check_other_llms(config: Config, stage: str, queries: Sequence[Query], client: LLMClient, number: int) -> None:
    """Ask the verifier for a verdict, and the LLMs behind tools and closed models for a reply."""
    verifier, known = config.judge.verifier, next(filter(has_answer, queries), None)
    others = {f"environment.{name}": llm for name, llm in config.environment.llms.items()}
    if stage == "evaluate":
        others |= {f"evaluate.api.{name}": llm for name, llm in config.evaluate.api.items()}
    if known:
        others["judge.verifier"] = verifier
    for key, llm in others.items():
        if llm.name != "llm":
            continue
        hasty, start = _impatient(llm), time.monotonic()
        if key == "judge.verifier":
            trajectory = _invented(known, 2).trajectories[0]
            reply = asyncio.run(Verifier(hasty, client).is_correct(known, trajectory, repeat=number))
        else:
            reply = asyncio.run(client.complete(hasty, probe_request(hasty), repeat=number))
        client.check()
        if reply is None or isinstance(reply, NoReply):
            reason = f": {reply.reason}" if reply else ""
            raise UserError(f"{key}: {llm.model} gave no readable reply{reason}")
        print(f"{key}: a reply of {llm.model} in {time.monotonic() - start:.1f} s")
