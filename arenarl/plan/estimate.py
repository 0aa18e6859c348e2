"""Estimate a run's judge calls before it starts, with an LLM's tokens and cost, as one printed line.

The calls are counted by playing one group's tournament with random scores, and the tokens by building its prompts from
a stored baseline. Thinking and retries are not included.
"""

import asyncio
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from arenarl.config.schema import Config, JudgeConfig, LLMConfig
from arenarl.domains.domain import make_domain
from arenarl.judges.llm import LLMJudge
from arenarl.judges.verifier import Verifier
from arenarl.llm.client import Message, Usage
from arenarl.system.errors import UserError
from arenarl.system.progress import is_main_process
from arenarl.tournament.schedules import parse_budget
from arenarl.tournament.topologies import paper_calls
from arenarl.training.arena import Arena
from arenarl.training.rewards import REWARDS
from arenarl.trajectory import Query, RolloutGroup, Trajectory, read_jsonl

_EXPLANATION = "A sentence about what the agent did well, and one of its faults, as the listwise prompt asks for."


class _CountingClient:
    """Stands in for `LLMClient`: counts calls and tokens, and replies at random."""

    def __init__(self):
        self.usage = Usage()
        self._rng = random.Random(0)

    async def ask(
        self, llm: LLMConfig, messages: Sequence[Message], reply_type: type[BaseModel], *_: Any, **__: Any
    ) -> BaseModel:
        reply = reply_type.model_validate(self._invent(reply_type))
        tokens_in = sum(_tokens(message["content"]) for message in messages)
        tokens_out = _tokens(json.dumps(reply.model_dump()))
        self.usage += Usage(calls=1, tokens_in=tokens_in, tokens_out=tokens_out, cost=llm.cost(tokens_in, tokens_out))
        return reply

    def _invent(self, reply_type: type[BaseModel]) -> dict[str, Any]:
        invented: dict[str, Any] = {}
        for name, field in reply_type.model_fields.items():
            if name in ("winners", "scores"):
                numbers = list(range(1, reply_type.model_json_schema()["properties"][name]["minItems"] + 1))
                scores = [self._rng.uniform(0, 10) for _ in numbers]
                pairs = zip(numbers, scores, strict=True)
                listed = [{"agent": agent, "explanation": _EXPLANATION, "score": score} for agent, score in pairs]
                invented[name] = numbers if name == "winners" else listed
            elif get_origin(field.annotation) is Literal:
                invented[name] = get_args(field.annotation)[0]
            elif field.annotation is str:
                invented[name] = _EXPLANATION
            elif field.annotation is bool:
                invented[name] = self._rng.random() < 0.5
            else:
                is_nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
                invented[name] = self._invent(field.annotation) if is_nested else self._rng.uniform(0, 10)
        return invented


def estimate_rl(config: Config, queries: Sequence[Query], baselines: dict[str, Trajectory]) -> Usage:
    """Estimate an RL run, rewards, watching judge and curve, from a few test queries and their baselines."""
    client, total = _CountingClient(), Usage()
    if config.judge.train.name == "llm":
        groups = [_group(query, baselines[query.query_id], config.rollout.group_size) for query in queries]
        _reward(config, LLMJudge(config.judge.train, client), groups)
        total += _times(client, config.rl.rollouts * config.rl.groups / len(queries))
    for judge in (LLMJudge(judge, client) for judge in config.judge.watching.values() if judge.name == "llm"):
        for query in queries:
            asyncio.run(judge.score(query, baselines[query.query_id]))
    total += _times(client, _count_watched(config) / len(queries))
    return total + _estimate_cases(config, queries, baselines, client, config.curve_cases)


def _reward(config: Config, judge: LLMJudge, groups: Sequence[RolloutGroup]) -> None:
    """Reward the groups, so that the judge's client counts the calls. Raises UserError if a user's function fails."""
    verifier = Verifier(config.judge.verifier, judge.client)
    arena = Arena(judge, config.reward, config.tournament, config.group_stage, verifier, config.seed)
    try:
        arena.reward_groups(groups)
    except Exception as error:
        if ":" not in config.reward.name or isinstance(error, UserError):
            raise
        raised = f"reward.name={config.reward.name} raised {error!r:.200} on invented trajectories"
        raise UserError(f"{raised}; its judge calls cannot be counted") from error


def most_calls(config: Config) -> int:
    """Return the most judge calls, without the verifier's, for one group of valid, different trajectories."""
    size, tournament, reward = config.rollout.group_size, config.tournament, REWARDS.get(config.reward.name)
    is_outcome = reward is not None and not reward.asks_judge
    if is_outcome and not config.reward.tournament_if_equal:
        return 0
    has_fixed_calls = ":" in tournament.topology or tournament.topology in ("elo", "random_reference")
    if not (is_outcome or reward and reward.plays_topology) or has_fixed_calls:  # the same number for every group
        trajectory = Trajectory("", [{"role": "assistant", "content": "<answer>\n\n</answer>"}], "answer")
        client = _CountingClient()
        query = Query("", make_domain(config.environment, config.data).name, "", "en", "")
        _reward(config, LLMJudge(JudgeConfig(), client), [_group(query, trajectory, size)])
        return client.usage.calls
    both_orders = paper_calls(tournament.topology, size) or 2 * parse_budget(tournament.matches, size)
    return both_orders if tournament.bidirectional else both_orders // 2


def judge_calls(config: Config, stage: str) -> dict[str, int]:
    """Return the most calls of a stage by use, over all judges of `judge.eval`; for a watching judge, the mean."""
    both_orders = 2 * len(config.judge.eval)
    if stage == "rl":
        calls = {
            "rewards": config.rl.rollouts * config.rl.groups * most_calls(config),
            "the curve": config.curve_cases * both_orders,
        }
        return calls | ({"the watching judge": math.ceil(_count_watched(config))} if config.judge.watching else {})
    if stage == "evaluate":
        trajectories = count_test_queries(config) * len(config.evaluate.attempts) * len(config.evaluated)
        return {"the evaluation": trajectories * both_orders}
    return {}


def _count_watched(config: Config) -> float:
    """Return the mean number of trajectories that `judge.watch` scores in an RL run."""
    return config.judge.watch_share * config.rl.rollouts * config.rl.groups * config.rollout.group_size


def count_test_queries(config: Config) -> int:
    """Return the planned number of test queries; count them for published data (UserError without the file)."""
    domain = make_domain(config.environment, config.data)
    subtasks = 1 if config.data.divide else len(domain.subtasks)  # a divided pool counts as one subtask
    planned = 0 if domain.has_own_queries else config.data.test_per_subtask * subtasks
    return planned or len(domain.read_split("test"))


def count_sft_trajectories(config: Config) -> int:
    """Return the planned number of SFT trajectories; for prepared published data that is not divided, count them."""
    path = Path(config.data.folder) / "sft.jsonl"
    if not path.is_file() or config.data.divide:
        return config.data.sft_size
    is_own = make_domain(config.environment, config.data).has_own_queries or config.data.source
    return sum(1 for _ in read_jsonl(path)) if is_own else config.data.sft_size


def _estimate_cases(
    config: Config, queries: Sequence[Query], baselines: dict[str, Trajectory], client: _CountingClient, cases: int
) -> Usage:
    """Estimate comparisons of policy and baseline, in both orders, by every judge of `judge.eval`."""
    for judge in (LLMJudge(judge, client) for judge in config.judge.eval if judge.name == "llm"):
        for query in queries:
            asyncio.run(judge.compare(query, baselines[query.query_id], baselines[query.query_id]))
    return _times(client, 2 * cases / len(queries))


def _times(client: _CountingClient, factor: float) -> Usage:
    """Return the client's usage times `factor`, and reset the client."""
    usage, client.usage = client.usage, Usage()
    return Usage(**{name: type(value)(round(value * factor, 4)) for name, value in asdict(usage).items()})


def _group(query: Query, trajectory: Trajectory, size: int) -> RolloutGroup:
    """Return a group of copies, numbered at the end of the answer, because identical trajectories enter once."""
    *earlier, last = trajectory.messages
    meta = dict.fromkeys(("turns", "tool_calls", "tool_errors", "policy_tokens"), 1) | trajectory.meta
    variants = [last["content"].replace("</answer>", f"{number}\n</answer>") for number in range(size)]
    messages = ([*earlier, {**last, "content": content}] for content in variants)
    return RolloutGroup(query, [replace(trajectory, messages=variant, meta=meta) for variant in messages])


def _tokens(text: str) -> int:
    """Estimate the number of tokens: 4 ASCII characters, or 1.5 other characters, per token."""
    ascii_count = sum(character.isascii() for character in text)
    return round(ascii_count / 4 + (len(text) - ascii_count) / 1.5)


def print_estimate(config: Config, stage: str) -> None:
    """Print the estimate as one line if the stage calls an LLM; on the main process only."""
    if not is_main_process():
        return
    judges, attempts = config.judge.eval, len(config.evaluate.attempts)
    if stage == "rl":
        judges = [config.judge.train, *config.judge.watching.values(), *judges]
    has_api, has_llm_judge = stage != "rl" and config.evaluate.api, any(judge.name == "llm" for judge in judges)
    if not (has_api or has_llm_judge):
        return
    domain = make_domain(config.environment, config.data)
    if has_api:
        trajectories = len(domain.read_test_set()[0]) * attempts * len(config.evaluate.api)
        calls = trajectories * config.test_turns
        print(f"closed models: {trajectories:,} trajectories, at most {calls:,} calls", flush=True)
    if not has_llm_judge:
        return
    queries, baselines = domain.read_test_set()
    if not baselines:
        reason = "no baselines are stored, which are needed for prompt sizes"
        limits = "set judge.max_calls or judge.max_cost as limits"
        print(f"estimate for {stage}: none, because {reason}; {limits}", flush=True)
        return
    if stage == "rl":
        try:
            usage = estimate_rl(config, queries[:5], baselines)
        except UserError as error:
            print(f"estimate for rl: not possible: {error}", flush=True)
            return
    else:
        cases = len(queries) * attempts * len(config.evaluated)
        usage = _estimate_cases(config, queries[:5], baselines, _CountingClient(), cases)
    tokens = f"{usage.tokens_in / 1e6:.2f}M tokens in, {usage.tokens_out / 1e6:.2f}M out"
    cost = f"cost {usage.cost:.2f} by the config's prices; thinking is extra"
    print(f"estimate for {stage}: about {usage.calls:,} judge calls, {tokens}, {cost}", flush=True)
