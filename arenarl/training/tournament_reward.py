"""The tournament as a reward for anybody's `GRPOTrainer`, without a config, data or rollouts of this project.

    from arenarl import tournament_reward
    trainer = GRPOTrainer(..., reward_funcs=tournament_reward(judge="openai", num_generations=8))

TRL samples and trains as it always does. Its rows become rollout groups here, which are rewarded as those of
train_rl.py are (`Arena`). What differs: no trajectory is greedy, so a topology that has an anchor takes the group's
first sample; judging begins once all are sampled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from arenarl.config.load import config_of_keys
from arenarl.config.schema import Config
from arenarl.domains.rubrics import RUBRICS, Rubric, read_rubric, rubric_in_words
from arenarl.judges.judge import Judge
from arenarl.judges.llm import LLMJudge
from arenarl.judges.own import OwnJudge
from arenarl.judges.verifier import Verifier
from arenarl.llm.client import LLMClient, open_client, usage_metrics
from arenarl.system.database import json_hash
from arenarl.system.errors import UserError
from arenarl.system.repository import CONFIGS
from arenarl.training.arena import Arena
from arenarl.training.metrics import judge_metrics
from arenarl.training.requirements import check_method
from arenarl.training.rewards.group import GroupOutcome
from arenarl.training.validity import VerdictWatch
from arenarl.trajectory import (
    Query,
    RolloutGroup,
    Trajectory,
    answer_text,
    native_calls,
    parse_turn,
    reply_message,
    text_of,
    tool_message,
)

Message = dict[str, Any]
Rows = Sequence[str | list[Message]]  # TRL's prompts, or completions: texts, or chats
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
    turn_ends: Collection[int] = (),
    **tournament: Any,
) -> RewardFunction:
    """An async reward function for TRL: from 0 for the last of its group to 1 for the first (Eq.
    6, ArenaRL), None without a verdict.

    A text without words, a conversation that ends in a tool call, and with `turn_ends` a completion that was cut, are
    not judged and share the last rank. On several processes each ranks its own groups; `max_calls` and `max_cost` count
    all of them by `run`, over restarts too, as the `store` has it.

    Args:
        judge: a name of configs/judges, a YAML of that form, or a `Judge` of your own, which brings its own rubric.
        num_generations: the trainer's, also for evaluation.
        rubric: what the judge goes by: a YAML as those in configs/rubrics, or words; None is
            configs/rubrics/writing_<language>.yaml.
        language: of the judge's prompt, en or zh.
        concurrency, store, max_calls, max_cost, max_failure_share: as under `judge` in docs/config.md.
        turn_ends: the token ids that end a completion, the tokenizer's `eos_token_id` and `pad_token_id`: one that ends
            with another was cut at `max_completion_length`, and is judged as it is if there are none here.
        tournament: keys as under `tournament` there, such as `topology`.

    Raises:
        UserError: an argument that cannot work; at the first step also rows that are no whole groups; later what ends
            the judging, such as a spent budget.
    """
    is_own = not isinstance(judge, (str, Path))
    if is_own and (isinstance(judge, type) or not hasattr(judge, "compare")):
        raise UserError(
            f"tournament_reward: judge={judge!r:.100}: name a file of configs/judges, "
            "or make a Judge, whose compare is async"
        )
    if is_own and rubric is not None:
        raise UserError("tournament_reward: a judge of your own brings its own rubric; leave rubric out")
    train = {} if is_own else {"base": str(_judge_file(judge))}
    budget = {"max_calls": max_calls, "max_cost": max_cost, "max_failure_share": max_failure_share}
    keys = {
        "name": run,
        "rollout": {"group_size": num_generations},
        "judge": {"train": train, "concurrency": concurrency, "store": str(store), **budget},
        "tournament": tournament,
    }
    config = config_of_keys(keys, "tournament_reward")
    check_method(config)
    client = open_client([config.judge.train], config.judge, f"{config.name}/reward")
    asked = OwnJudge(judge, type(judge).__name__) if is_own else _make_judge(config, client, _rubric(rubric, language))
    verifier = Verifier(config.judge.verifier, client)
    arena = Arena(asked, config.reward, config.tournament, config.group_stage, verifier, seed)
    verdicts = VerdictWatch(max_failure_share)

    async def reward(
        prompts: Rows,
        completions: Rows,
        completion_ids: Sequence[Sequence[int]] = (),
        log_metric: Log | None = None,
        **_: Any,
    ) -> list[float | None]:
        cut = [bool(turn_ends) and not {*ids[-1:]} & {*turn_ends} for ids in completion_ids]
        groups = read_groups(prompts, completions, num_generations, language, cut)
        outcomes = await asyncio.to_thread(arena.reward_groups, groups)
        arena.learn(num_generations, [outcome.scored_calls for outcome in outcomes])
        verdicts.look([outcome.tally for outcome in outcomes])
        for name, values in _metrics(groups, outcomes, arena, client).items() if log_metric else ():
            for value in values:
                log_metric(name, value)
        if client:
            client.check()
        return [one for outcome in outcomes for one in outcome.rewards_G]

    reward.__name__ = "tournament"
    return reward


def _judge_file(judge: str | Path) -> Path:
    path = Path(judge)
    return CONFIGS / "judges" / f"{path}.yaml" if path.name == str(judge) and not path.suffix else path


def _rubric(rubric: str | Path | None, language: str) -> Rubric:
    if language not in ("en", "zh"):
        raise UserError(f"tournament_reward: language={language!r}: choose en or zh")
    if rubric is None:
        return read_rubric(RUBRICS / f"writing_{language}.yaml")
    if isinstance(rubric, Path) or rubric.endswith((".yaml", ".yml")):
        return read_rubric(Path(rubric))
    return rubric_in_words(rubric)


def _make_judge(config: Config, client: LLMClient | None, rubric: Rubric) -> Judge:
    judge = config.judge.train
    if judge.name == "embedded":
        raise UserError(
            "tournament_reward: the embedded judge knows this project's own worlds; "
            "take another file of configs/judges, or a Judge"
        )
    if judge.query_rubrics:
        raise UserError(
            "tournament_reward: judge.query_rubrics are written for queries with ids; "
            "give the rubric as words or a file"
        )
    if judge.name != "llm":
        return OwnJudge.of(judge)
    return LLMJudge(judge, client, lambda query: rubric)


def read_groups(
    prompts: Rows, completions: Rows, size: int, language: str, cut: Sequence[bool] = ()
) -> list[RolloutGroup]:
    """TRL's rows as rollout groups of `size`; `cut` says which completions did not come to their end.

    Raises:
        UserError: they do not come as whole runs of `size` rows with one prompt.
    """
    runs = [len(list(run)) for _, run in groupby(prompts)]
    if any(run % size for run in runs):
        raise UserError(
            f"tournament_reward: {len(prompts)} rows have runs of {', '.join(map(str, runs[:8]))} with one prompt, "
            f"not whole groups of num_generations={size}: give it the trainer's num_generations, and make "
            "per_device_train_batch_size * steps_per_generation a multiple of it, "
            "so that no group is shared by two processes"
        )
    if min(runs, default=size) > size:
        raise UserError(
            f"tournament_reward: all prompts stand in {min(runs)} or more rows, not in num_generations={size}: "
            "give it the trainer's num_generations; where the same prompt stands in the dataset twice, leave one out"
        )
    groups, rows = [], list(zip(completions, [*cut] or [False] * len(completions), strict=True))
    for first in range(0, len(prompts), size):
        query = read_query(prompts[first], language)
        groups.append(RolloutGroup(query, [read_trajectory(query, *row) for row in rows[first : first + size]]))
    return groups


def read_query(prompt: str | list[Message], language: str) -> Query:
    """A prompt as the judge is shown it: a text, a chat's one message, or all of its messages, each behind its role."""
    if isinstance(prompt, str):
        text = prompt
    else:
        said = [(message["role"], text_of(message.get("content"))) for message in prompt]
        text = said[0][1] if len(said) == 1 else "\n\n".join(f"{role}: {content}" for role, content in said)
    return Query(json_hash(prompt)[:16], "", "", language, text)


def read_trajectory(query: Query, completion: str | list[Message], is_cut: bool = False) -> Trajectory:
    """A completion, a text or the messages behind the prompt, whose last text is the answer, unless it was cut.

    >>> read_trajectory(Query("q", "", "", "en", "?"), "<think>hm</think>Yes.").answer
    'Yes.'
    """
    said = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    messages = [_message(message) for message in said]
    last = parse_turn(messages[-1]) if messages and messages[-1]["role"] == "assistant" else None
    if last is None or last.tool_calls:
        return Trajectory(query.query_id, messages, "max_turns")
    messages[-1]["content"] = answer_text(messages[-1]["content"])
    one = Trajectory(query.query_id, messages, "max_tokens" if is_cut else "answer")
    return one if one.answer else replace(one, stop_reason="no_answer")


def _message(message: Message) -> Message:
    text = text_of(message.get("content"))
    if message["role"] == "assistant":
        calls = [call for _, call in native_calls(message)]
        return reply_message(message | {"content": _with_whole_thought(text)}, calls)
    return tool_message(text) if message["role"] == "tool" else {"role": message["role"], "content": text}


def _with_whole_thought(text: str) -> str:
    """The text with its thought between tags: a template may have opened it in the prompt,
    and one that is cut has no end.

    >>> _with_whole_thought("hm</think>Yes."), _with_whole_thought("<think>hm"), _with_whole_thought("Yes.")
    ('<think>hm</think>Yes.', '<think>hm</think>', 'Yes.')
    """
    thought, closing, rest = text.rpartition("</think>")
    if closing:
        return f"<think>{thought.replace('<think>', '').replace('</think>', '')}</think>{rest}"
    return f"{text}</think>" if text.lstrip().startswith("<think>") else text


def _metrics(
    groups: Sequence[RolloutGroup], outcomes: Sequence[GroupOutcome], arena: Arena, client: LLMClient | None
) -> dict[str, list[float]]:
    """Values of this process; TRL takes the mean over all.
    So counts of calls and tokens are those of a mean process."""
    metrics = judge_metrics(outcomes) | {name: [value] for name, value in arena.judge_metrics().items()}
    metrics["rollout/valid_rate"] = [float(trajectory.valid) for group in groups for trajectory in group.trajectories]
    if client:
        metrics |= {name: [float(value)] for name, value in usage_metrics(*client.take_usage()).items()}
    return metrics
