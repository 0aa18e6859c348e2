"""What `train_rl.py --check` finds out beyond sound input, without a GPU: prompts, plan, disk, and whether every LLM judge replies.

Each LLM judge is asked once, to compare two answers that stand in for trajectories: a call that is paid for and kept like any other.
"""

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from arenarl.config.schema import Config, JudgeConfig
from arenarl.judges.llm import LLMJudge
from arenarl.llm.client import LLMClient
from arenarl.plan.memory import gb
from arenarl.plan.stage import Stage
from arenarl.rollout.engine import RolloutEngine, longest_prompt
from arenarl.system.errors import UserError
from arenarl.system.progress import process_count
from arenarl.trajectory import Query, Trajectory

PATIENCE_S = 30.0  # for which a judge that does not reply is asked again
CHECKPOINTS = 3  # on the disk at once: two are kept while a third is written


def check_readiness(config: Config, folder: Path, queries: Sequence[Query], engine: RolloutEngine, client: LLMClient | None) -> None:
    """A line for each. What the plan says of GPUs that may not be these stops nothing.

    Raises:
        UserError: a trajectory is longer than the model reads, the disk is too small, or a judge has no verdict.
    """
    stage = Stage(config, "rl", process_count())
    _check_prompts(stage, queries, engine)
    gpus = f"{stage.gpus} GPU{'s' * (stage.gpus > 1)} of {stage.gpu.memory_gb:g} GB"
    print(f"plan for {gpus}: {'; '.join(stage.misfits) or 'fits'}; python -m arenarl.plan has others")
    _check_disk(stage, folder)
    judges = {"judge.train": config.judge.train} | config.judge.watching
    judges |= {f"judge.eval.{index}": judge for index, judge in enumerate(config.judge.eval)}
    for key, judge in judges.items():
        if judge.name == "llm":
            _check_judge(key, judge, queries[0], client)


def _check_prompts(stage: Stage, queries: Sequence[Query], engine: RolloutEngine) -> None:
    prompt, budget, positions = longest_prompt(engine, queries), stage.length, stage.shape.positions
    if prompt + budget > positions:
        raise UserError(
            f"a prompt of {prompt:,} tokens and rollout.max_tokens={budget} are more than the {positions:,} that the model reads; "
            f"set rollout.max_tokens to {positions - prompt} or less"
        )
    print(f"prompts: at most {prompt:,} tokens, with rollout.max_tokens {prompt + budget:,} of the {positions:,} that the model reads")


def _check_disk(stage: Stage, folder: Path) -> None:
    states = replace(stage.training, gpus=1, reference=False).states()
    needed = CHECKPOINTS * (sum(states.values()) - states["gradients"]) + states["parameters"]
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(f"{folder}: checkpoints take up to {gb(needed)} GB, and {gb(free)} GB are free; free some space, or use a larger disk")
    print(f"disk: checkpoints take up to {gb(needed)} of {gb(free)} GB")


def _check_judge(key: str, judge: JudgeConfig, query: Query, client: LLMClient) -> None:
    one, other = (
        Trajectory(query.query_id, [{"role": "assistant", "reasoning_content": "", "content": f"<answer>\n{text}\n</answer>"}], "answer")
        for text in ("An answer.", "Another answer.")
    )
    start = time.monotonic()
    impatient = replace(judge, patience_s=min(judge.patience_s, PATIENCE_S))
    verdict = asyncio.run(LLMJudge(impatient, client).compare(query, one, other))
    client.check()
    if verdict is None:
        raise UserError(f"{key}: {judge.model} gave no verdict that can be read; ./reproduce.sh judge_check tells how often it does")
    print(f"{key}: a verdict of {judge.model} in {time.monotonic() - start:.1f} s")
