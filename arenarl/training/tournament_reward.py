"""The tournament as a reward function for any `GRPOTrainer`, without this project's configs, data or rollouts.

    from arenarl import tournament_reward
    trainer = GRPOTrainer(..., reward_funcs=tournament_reward(judge="openai", num_generations=8))

TRL samples and trains as usual. This module turns TRL's rows into rollout groups, which `Arena` rewards as in
train_rl.py. Two things differ: no trajectory is greedy, so the anchor is the group's first sample; judging begins after
all trajectories are sampled.
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
from arenarl.trajectory.messages import are_objects

Message = dict[str, Any]
Rows = Sequence[str | list[Message]]  # TRL's prompts or completions: texts or chats
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
        turn_ends: token ids that end a complete completion: the tokenizer's `eos_token_id` and `pad_token_id`. Without
            them, completions truncated at `max_completion_length` are judged as they are.
        tournament: keys as under `tournament` in docs/config.md, such as `topology`.

    Raises:
        UserError: an argument is invalid; when training starts, the rows are not whole groups; during training, the
        budget is spent or too many judge calls fail.
    """
    is_own = not isinstance(judge, (str, Path))
    if is_own and (isinstance(judge, type) or not hasattr(judge, "compare")):
        raise UserError(
            f"tournament_reward: judge={judge!r:.100} is not a judge: pass a name from configs/judges, "
            "or an instance with an async method compare"
        )
    if is_own and rubric is not None:
        raise UserError("tournament_reward: your own judge contains its rubric; leave rubric out")
    limits = {"max_calls": max_calls, "max_cost": max_cost, "max_failure_share": max_failure_share}
    limits |= {"concurrency": concurrency, "store": str(store)}
    judges = {"train": {} if is_own else {"base": str(_judge_file(judge))}, **limits}
    rollout = {"group_size": num_generations}
    keys = {"name": run, "rollout": rollout, "judge": judges, "tournament": tournament}
    config = config_of_keys(keys, "tournament_reward")
    check_method(config)
    client = open_client([config.judge.train], config.judge, f"{config.name}/reward")
    made = OwnJudge(judge, type(judge).__name__) if is_own else _make_judge(config, client, _rubric(rubric, language))
    verifier = Verifier(config.judge.verifier, client)
    arena = Arena(made, config.reward, config.tournament, config.group_stage, verifier, seed)
    verdicts = VerdictWatch(max_failure_share)

    async def reward(
        prompts: Rows, completions: Rows, completion_ids: Sequence[Sequence[int]] = (), log_metric: Log | None = None,
        **_: Any,
    ) -> list[float | None]:  # fmt: skip
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
        return [value for outcome in outcomes for value in outcome.rewards_G]

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
            "tournament_reward: the embedded judge works only in this project's own worlds; "
            "choose another file of configs/judges, or pass a Judge"
        )
    if judge.query_rubrics:
        raise UserError(
            "tournament_reward: judge.query_rubrics needs queries with ids, which TRL's prompts lack; "
            "pass rubric as words or a file"
        )
    if judge.name != "llm":
        return OwnJudge.of(judge)
    return LLMJudge(judge, client, lambda query: rubric)


def read_groups(
    prompts: Rows, completions: Rows, size: int, language: str, cut: Sequence[bool] = ()
) -> list[RolloutGroup]:
    """Return TRL's rows as rollout groups of `size`; `cut` marks truncated completions.

    Raises UserError if the rows are not texts or messages, or not runs of `size` rows with one prompt.
    """
    if not len(prompts) == len(completions) == len(cut or completions):
        ids = f" and {len(cut)} completion_ids" if cut else ""
        raise UserError(
            f"tournament_reward: {len(prompts)} prompts, {len(completions)} completions{ids}; pass one of each per row"
        )
    for name, rows in (("prompt", prompts), ("completion", completions)):
        for number, row in enumerate(rows):
            _check_row(name, number, row)
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
    groups, rows = [], list(zip(completions, [*cut] or [False] * len(completions), strict=True))
    for first in range(0, len(prompts), size):
        query = read_query(prompts[first], language)
        groups.append(RolloutGroup(query, [read_trajectory(query, *row) for row in rows[first : first + size]]))
    return groups


def _check_row(name: str, number: int, row: Any) -> None:
    """Raise UserError unless the row is a text, or a list of messages with a role."""
    if isinstance(row, str):
        return
    problem = f"tournament_reward: the {name} of row {number} must be a text or a list of messages"
    if not isinstance(row, list | tuple):
        raise UserError(f"{problem}, not {row!r:.100}")
    for message in row:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise UserError(f"{problem}; one message has no role: {message!r:.100}")
        calls = message.get("tool_calls") or []
        if not are_objects(calls, lambda call: isinstance(call.get("function") or {}, dict)):
            raise UserError(f"{problem}; one message has tool_calls that are not OpenAI's: {calls!r:.100}")


def read_query(prompt: str | list[Message], language: str) -> Query:
    """Return a prompt as the judge's query: its text, its only message, or all messages, each with its role."""
    if isinstance(prompt, str):
        text = prompt
    else:
        messages = [(message["role"], text_of(message.get("content"))) for message in prompt]
        text = messages[0][1] if len(messages) == 1 else "\n\n".join(f"{role}: {text}" for role, text in messages)
    return Query(json_hash(prompt)[:16], "", "", language, text)


def read_trajectory(query: Query, completion: str | list[Message], is_cut: bool = False) -> Trajectory:
    """Return a completion, a text or messages, as a trajectory whose answer is the last text unless it was cut.

    >>> read_trajectory(Query("q", "", "", "en", "?"), "<think>hm</think>Yes.").answer
    'Yes.'
    """
    chat = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    messages = [_message(message) for message in chat]
    last = parse_turn(messages[-1]) if messages and messages[-1]["role"] == "assistant" else None
    if last is None or last.tool_calls:
        return Trajectory(query.query_id, messages, "max_turns")
    messages[-1]["content"] = answer_text(messages[-1]["content"])
    trajectory = Trajectory(query.query_id, messages, "max_tokens" if is_cut else "answer")
    return trajectory if trajectory.answer else replace(trajectory, stop_reason="no_answer")


def _message(message: Message) -> Message:
    text = text_of(message.get("content"))
    if message["role"] == "assistant":
        calls = [call for _, call in native_calls(message)]
        return reply_message(message | {"content": _with_whole_thought(text)}, calls)
    return tool_message(text) if message["role"] == "tool" else {"role": message["role"], "content": text}


def _with_whole_thought(text: str) -> str:
    """Add the missing tag of a thought that the chat template opened in the prompt, or that was truncated.

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
    """This process's values. TRL logs the mean over all processes, also for counts of calls and tokens."""
    metrics = judge_metrics(outcomes) | {name: [value] for name, value in arena.judge_metrics().items()}
    metrics["rollout/valid_rate"] = [float(trajectory.valid) for group in groups for trajectory in group.trajectories]
    if client:
        metrics |= {name: [float(value)] for name, value in usage_metrics(*client.take_usage()).items()}
    return metrics
