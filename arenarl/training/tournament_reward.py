"""The tournament as a reward function for any `GRPOTrainer`, without this project's configs, data or rollouts.

    from arenarl import tournament_reward
    trainer = GRPOTrainer(..., reward_funcs=tournament_reward(judge="openai", num_generations=8))

TRL samples and trains as usual. This module turns TRL's rows into rollout groups, which `Arena` rewards as in
train_rl.py. Two things differ: no trajectory is greedy, so the anchor is the group's first sample; judging begins after
all trajectories are sampled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any

from arenarl.config.load import config_of_keys
from arenarl.judges.judge import Judge
from arenarl.judges.named import judge_keys, open_judge
from arenarl.judges.verifier import Verifier
from arenarl.llm.client import LLMClient, usage_metrics
from arenarl.system.errors import UserError
from arenarl.system.progress import say_once
from arenarl.training.arena import Arena
from arenarl.training.metrics import judge_metrics
from arenarl.training.requirements import check_method
from arenarl.training.rewards.group import GroupOutcome
from arenarl.training.validity import VerdictWatch
from arenarl.trajectory import RolloutGroup
from arenarl.trajectory.chats import ROLES, Chat, chat_query, chat_trajectory, check_chat

Rows = Sequence[Chat]  # TRL's prompts or completions: texts or chats
Log = Callable[[str, float], None]
RewardFunction = Callable[..., Awaitable[list[float | None]]]


def tournament_reward(
    judge: str | Path | Judge = "openai",
    *,
    num_generations: int,
    rubric: str | Path | None = None,
    language: str = "en",
    seed: int = 0,
    run: str = "tournament_reward",
    concurrency: int = 64,
    store: str | Path = "runs/replies.sqlite",
    max_calls: int | None = None,
    max_cost: float | None = None,
    max_failure_share: float = 0.2,
    turn_ends: Collection[int | None] = (),
    **tournament: Any,
) -> RewardFunction:
    """Return an async reward function for TRL: 1 for the first of a group, 0 for the last, None if it has no rank.

    Rewards follow Eq. 6, ArenaRL. Three kinds of completions are not judged and share the last rank: empty texts,
    conversations that end in a tool call, and, with `turn_ends`, truncated completions. Each process ranks its own
    groups. `max_calls` and `max_cost` hold for all processes and restarts with the same `run` and `store`.

    Args:
        judge: a name in configs/judges, a YAML file of that form, or an instance of your own `Judge`, with its rubric.
        num_generations: the trainer's value; evaluation must use it too.
        rubric: a YAML file as in configs/rubrics, or the criteria in words; default
            configs/rubrics/writing_<language>.yaml.
        language: language of the judge's prompt, en or zh.
        concurrency, store, max_calls, max_cost, max_failure_share: as under `judge` in docs/config.md.
        turn_ends: token ids that end a complete completion: the tokenizer's `eos_token_id` and `pad_token_id`, which
            may be None. Without them, completions truncated at `max_completion_length` are judged as they are.
        tournament: keys as under `tournament` in docs/config.md, such as `topology`.

    Raises:
        UserError: an argument is invalid; when training starts, the rows are not whole groups; during training, the
        budget is spent or too many judge calls fail.
    """
    limits = {"max_calls": max_calls, "max_cost": max_cost, "max_failure_share": max_failure_share}
    limits |= {"concurrency": concurrency, "store": str(store)}
    judges = judge_keys("tournament_reward", judge) | limits
    rollout = {"group_size": num_generations}
    keys = {"name": run, "rollout": rollout, "judge": judges, "tournament": tournament}
    config = config_of_keys(keys, "tournament_reward")
    check_method(config)
    made, client = open_judge("tournament_reward", judge, rubric, language, config.judge, f"{config.name}/reward")
    verifier = Verifier(config.judge.verifier, client)
    arena = Arena(made, config.reward, config.tournament, config.group_stage, verifier, seed)
    verdicts, ends = VerdictWatch(max_failure_share), _token_ids(turn_ends)

    async def reward(
        prompts: Rows, completions: Rows, completion_ids: Sequence[Sequence[int]] = (), log_metric: Log | None = None,
        **_: Any,
    ) -> list[float | None]:  # fmt: skip
        cut = [not {*ids[-1:]} & ends for ids in completion_ids] if ends else None
        if cut and all(cut):
            problem = "every completion of a step is truncated, so all its rewards are equal"
            say_once(f"tournament_reward: {problem}; raise max_completion_length, or check turn_ends")
        groups = read_groups(prompts, completions, num_generations, language, cut)
        outcomes = await asyncio.to_thread(arena.reward_groups, groups)
        arena.learn(num_generations, [outcome.scored_calls for outcome in outcomes])
        verdicts.look([outcome.tally for outcome in outcomes])
        for name, values in _metrics(groups, outcomes, arena, client).items() if log_metric else ():
            for value in values:
                log_metric(name, value)
        if client:
            client.check()
        return [value for outcome in outcomes for value in outcome.rewards_G]

    reward.__name__ = "tournament"
    return reward


def _token_ids(turn_ends: Any) -> set[int]:
    """Return the token ids without None. Raises UserError for other values, which would mark all completions as cut."""
    given = list(turn_ends) if isinstance(turn_ends, Collection) else [turn_ends]
    ids = [end for end in given if end is not None]
    if not all(isinstance(end, Integral) for end in ids) or (isinstance(turn_ends, Collection) and given and not ids):
        how = "pass {tokenizer.eos_token_id, tokenizer.pad_token_id}"
        raise UserError(f"tournament_reward: turn_ends={turn_ends!r:.100} must hold token ids; {how}")
    return set(ids)


def read_groups(
    prompts: Rows, completions: Rows, size: int, language: str, cut: Sequence[bool] | None = None
) -> list[RolloutGroup]:
    """Return TRL's rows as rollout groups of `size`; `cut` marks truncated completions, if they are known.

    Raises UserError if the rows are not texts or messages, or not runs of `size` rows with one prompt.
    """
    are_cut = [False] * len(completions) if cut is None else cut
    if not len(prompts) == len(completions) == len(are_cut):
        ids = "" if cut is None else f" and {len(cut)} completion_ids"
        raise UserError(
            f"tournament_reward: {len(prompts)} prompts, {len(completions)} completions{ids}; pass one of each per row"
        )
    for name, rows, roles in (("prompt", prompts, None), ("completion", completions, ROLES)):
        for number, row in enumerate(rows):
            try:
                check_chat(f"the {name} of row {number}", row, roles)
            except ValueError as error:
                raise UserError(f"tournament_reward: {error}") from error
    runs = [len(list(run)) for _, run in groupby(prompts)]
    if any(run % size for run in runs):
        raise UserError(
            f"tournament_reward: {len(prompts)} rows have runs of {', '.join(map(str, runs[:8]))} with one prompt, "
            f"not whole groups of num_generations={size}: pass the trainer's num_generations, and "
            "make per_device_train_batch_size * steps_per_generation a multiple of it, so that no two processes share "
            "a group"
        )
    if min(runs, default=size) > size:
        raise UserError(
            f"tournament_reward: all prompts have {min(runs)} or more rows, not num_generations={size}: "
            "pass the trainer's num_generations, and remove duplicate prompts from the dataset"
        )
    groups, rows = [], list(zip(completions, are_cut, strict=True))
    for first in range(0, len(prompts), size):
        query = chat_query(prompts[first], language)
        groups.append(RolloutGroup(query, [chat_trajectory(query, *row) for row in rows[first : first + size]]))
    return groups


def _metrics(
    groups: Sequence[RolloutGroup], outcomes: Sequence[GroupOutcome], arena: Arena, client: LLMClient | None
) -> dict[str, list[float]]:
    """This process's values. TRL logs the mean over all processes, also for counts of calls and tokens."""
    metrics = judge_metrics(outcomes) | {name: [value] for name, value in arena.judge_metrics().items()}
    metrics["rollout/valid_rate"] = [float(trajectory.valid) for group in groups for trajectory in group.trajectories]
    if client:
        metrics |= {name: [float(value)] for name, value in usage_metrics(*client.take_usage()).items()}
    return metrics
