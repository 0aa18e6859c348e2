"""Further checks of `train_rl.py --check`, without a GPU: prompt lengths, plan, disk, and replies of the LLM judges.

Each LLM judge compares two invented answers once, and an LLM verifier checks one answer. These calls are paid for and
stored like all other calls, but their replies never come from the store.
"""

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from arenarl.config.schema import Config, JudgeConfig, LLMConfig
from arenarl.domains.known_answers import has_answer
from arenarl.judges.llm import LLMJudge
from arenarl.judges.verifier import Verifier
from arenarl.llm.client import LLMClient
from arenarl.plan.memory import gb
from arenarl.plan.stage import Stage
from arenarl.rollout.engine import RolloutEngine, longest_prompt
from arenarl.system.errors import UserError
from arenarl.system.progress import process_count
from arenarl.trajectory import Query, Trajectory

PATIENCE_S = 30.0  # maximum time of retries if a judge does not reply
CHECKPOINTS = 3  # on the disk at once: two complete ones and the one being written


def check_readiness(
    config: Config, folder: Path, queries: Sequence[Query], engine: RolloutEngine, client: LLMClient | None
) -> None:
    """Run the checks and print a line for each. A plan that does not fit is only reported: training may use other GPUs.

    Raises:
        UserError: a trajectory is longer than the model reads, the disk is too small, or a judge gives no verdict.
    """
    stage = Stage(config, "rl", process_count())
    try:
        _ = stage.shape
    except UserError as error:
        print(f"lengths, plan and disk: not checked: {error}")
    else:
        _check_prompts(stage, queries, engine)
        gpus = f"{stage.gpus} GPU{'s' * (stage.gpus > 1)} of {stage.gpu.memory_gb:g} GB"
        print(f"plan for {gpus}: {'; '.join(stage.misfits) or 'fits'}; for other GPUs: python -m arenarl.plan")
        _check_disk(stage, folder)
    judges = {"judge.train": config.judge.train} | config.judge.watching | config.judge.evaluating
    for key, judge in judges.items():
        if judge.name == "llm":
            _check_llm(key, judge, queries[0], client)
    known = next(filter(has_answer, queries), None)
    if config.judge.verifier.name == "llm" and known:
        _check_llm("judge.verifier", config.judge.verifier, known, client)


def _check_prompts(stage: Stage, queries: Sequence[Query], engine: RolloutEngine) -> None:
    prompt, budget, positions = longest_prompt(engine, queries), stage.length, stage.shape.positions
    if prompt + budget > positions:
        both = f"a prompt of {prompt:,} tokens and rollout.max_tokens={budget}"
        advice = f"set rollout.max_tokens to {positions - prompt} or less"
        raise UserError(f"{both} are more than the {positions:,} that the model reads; {advice}")
    both = f"with rollout.max_tokens {prompt + budget:,} of the {positions:,} that the model reads"
    print(f"prompts: at most {prompt:,} tokens, {both}")


def _check_disk(stage: Stage, folder: Path) -> None:
    training = replace(stage.training, gpus=1, reference=False)
    states, frozen = training.states(), training.shape.width * training.shape.parameters if training.lora_rank else 0
    checkpoint = sum(states.values()) - states["gradients"] - frozen  # LoRA's checkpoints hold only the adapter
    present = len(list(folder.glob("checkpoint-*/whole.json")))
    needed = max(CHECKPOINTS - present, 1) * checkpoint + states["parameters"]
    free = shutil.disk_usage(folder).free
    if needed > free:
        taken = f"checkpoints take up to {gb(needed)} GB, and {gb(free)} GB are free"
        raise UserError(f"{folder}: {taken}; free some space, or use a larger disk")
    print(f"disk: checkpoints take up to {gb(needed)} of {gb(free)} GB")


def _check_llm(key: str, llm: LLMConfig, query: Query, client: LLMClient) -> None:
    """Ask a judge or the verifier for one verdict."""
    texts = ("An answer.", "Another answer.")
    messages = [
        {"role": "assistant", "reasoning_content": "", "content": f"<answer>\n{text}\n</answer>"} for text in texts
    ]
    first, second = (Trajectory(query.query_id, [message], "answer") for message in messages)
    hasty, advice, start = replace(llm, patience_s=min(llm.patience_s, PATIENCE_S)), "", time.monotonic()
    if isinstance(llm, JudgeConfig):
        call = LLMJudge(hasty, client).compare(query, first, second, repeat=time.time_ns())
        advice = "; ./reproduce.sh judge_check measures how often it does"
    else:
        call = Verifier(hasty, client).is_correct(query, first, repeat=time.time_ns())
    verdict = asyncio.run(call)
    client.check()
    if verdict is None:
        raise UserError(f"{key}: {llm.model} gave no readable verdict{advice}")
    print(f"{key}: a verdict of {llm.model} in {time.monotonic() - start:.1f} s")
