"""What a run's judge calls will come to, before it starts:
how many, and for an LLM tokens and cost, printed as one line.

The calls are counted by playing one group's tournament with invented scores; the tokens by building its prompts from a
stored baseline. Thinking and asking again are not in it.
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
    """Stands in for `LLMClient`: counts what would be asked and answers at random."""

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
                about = zip(numbers, scores, strict=True)
                listed = [{"agent": agent, "explanation": _EXPLANATION, "score": score} for agent, score in about]
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
    """All of an RL run: the rewards of every step, and the curve, from a few test queries and their baselines."""
    client = _CountingClient()
    total = Usage()
    if config.judge.train.name == "llm":
        groups = [_group(query, baselines[query.query_id], config.rollout.group_size) for query in queries]
        _reward(config, LLMJudge(config.judge.train, client), groups)
        total += _times(client, config.rl.rollouts * config.rl.groups / len(queries))
    total += _estimate_watching(config, queries, baselines, client)
    return total + _estimate_cases(config, queries, baselines, client, config.curve_cases)


def _reward(config: Config, judge: LLMJudge, groups: Sequence[RolloutGroup]) -> None:
    """Ask what rewarding the groups asks. Raises UserError if a reward of one's own cannot be had of trajectories that
    nobody rolled out."""
    verifier = Verifier(config.judge.verifier, judge.client)
    arena = Arena(judge, config.reward, config.tournament, config.group_stage, verifier, config.seed)
    try:
        arena.reward_groups(groups)
    except Exception as error:
        if ":" not in config.reward.name or isinstance(error, UserError):
            raise
        raised = f"reward.name={config.reward.name} raised {error!r:.200} of invented trajectories"
        raise UserError(f"{raised}; its judge calls are not known") from error


def most_calls(config: Config) -> int:
    """Judge calls that the reward of one group takes at most, if all its trajectories differ and are valid;
    verifying answers is not in it."""
    size, tournament, reward = config.rollout.group_size, config.tournament, REWARDS.get(config.reward.name)
    is_outcome = reward is not None and not reward.asks_judge
    if is_outcome and not config.reward.tournament_if_equal:
        return 0
    asks_alike = ":" in tournament.topology or tournament.topology in ("elo", "random_reference")
    if not (is_outcome or reward and reward.plays_topology) or asks_alike:  # these ask as often for every group
        trajectory = Trajectory("", [{"role": "assistant", "content": "<answer>\n\n</answer>"}], "answer")
        client = _CountingClient()
        query = Query("", make_domain(config.environment, config.data).name, "", "en", "")
        _reward(config, LLMJudge(JudgeConfig(), client), [_group(query, trajectory, size)])
        return client.usage.calls
    both_orders = paper_calls(tournament.topology, size) or 2 * parse_budget(tournament.matches, size)
    return both_orders if tournament.bidirectional else both_orders // 2


def judge_calls(config: Config, stage: str) -> dict[str, int]:
    """Calls that a stage makes at most, by what for, over all of `judge.eval`; of a watching judge about as many."""
    both_orders = 2 * len(config.judge.eval)
    if stage == "rl":
        calls = {
            "rewards": config.rl.rollouts * config.rl.groups * most_calls(config),
            "the curve": config.curve_cases * both_orders,
        }
        return calls | ({"the watching judge": math.ceil(_watched(config))} if config.judge.watching else {})
    if stage == "evaluate":
        trajectories = count_test_queries(config) * len(config.evaluate.attempts) * len(config.evaluated)
        return {"the evaluation": trajectories * both_orders}
    return {}


def _watched(config: Config) -> float:
    """Trajectories that `judge.watch` scores over a run of RL, in the mean over the draws of groups."""
    return config.judge.watch_share * config.rl.rollouts * config.rl.groups * config.rollout.group_size


def _estimate_watching(
    config: Config, queries: Sequence[Query], baselines: dict[str, Trajectory], client: _CountingClient
) -> Usage:
    for judge in (LLMJudge(judge, client) for judge in config.judge.watching.values() if judge.name == "llm"):
        for query in queries:
            asyncio.run(judge.score(query, baselines[query.query_id]))
    return _times(client, _watched(config) / len(queries))


def count_test_queries(config: Config) -> int:
    """As many as will be made; where others made them, as many as there are.
    Raises UserError if these are not prepared yet."""
    domain = make_domain(config.environment, config.data)
    subtasks = 1 if config.data.divide else len(domain.subtasks)  # a pool that is divided is taken as one
    planned = 0 if domain.has_own_queries else config.data.test_per_subtask * subtasks
    return planned or len(domain.read_split("test"))


def count_sft_trajectories(config: Config) -> int:
    """As many as are taken, or, of published data that nothing divides and where they are there already,
    as many as there are."""
    path = Path(config.data.folder) / "sft.jsonl"
    if not path.is_file() or config.data.divide:
        return config.data.sft_size
    is_own = make_domain(config.environment, config.data).has_own_queries or config.data.source
    return sum(1 for _ in read_jsonl(path)) if is_own else config.data.sft_size


def _estimate_cases(
    config: Config, queries: Sequence[Query], baselines: dict[str, Trajectory], client: _CountingClient, cases: int
) -> Usage:
    """Policy against baseline in both orders, by every judge of `judge.eval`."""
    for judge in (LLMJudge(judge, client) for judge in config.judge.eval if judge.name == "llm"):
        for query in queries:
            asyncio.run(judge.compare(query, baselines[query.query_id], baselines[query.query_id]))
    return _times(client, 2 * cases / len(queries))


def _times(client: _CountingClient, factor: float) -> Usage:
    """What the client counted so far, `factor` times; it counts anew."""
    counted, client.usage = client.usage, Usage()
    return Usage(**{name: type(value)(round(value * factor, 4)) for name, value in asdict(counted).items()})


def _group(query: Query, trajectory: Trajectory, size: int) -> RolloutGroup:
    """As many trajectories, which differ in a number at the end of the answer: identical ones would enter once.
    `meta` is that of a rollout."""
    *earlier, last = trajectory.messages
    meta = dict.fromkeys(("turns", "tool_calls", "tool_errors", "policy_tokens"), 1) | trajectory.meta
    variants = [last["content"].replace("</answer>", f"{number}\n</answer>") for number in range(size)]
    return RolloutGroup(
        query,
        [replace(trajectory, messages=[*earlier, {**last, "content": content}], meta=meta) for content in variants],
    )


def _tokens(text: str) -> int:
    """Roughly: four ASCII characters, or one and a half others, make a token."""
    ascii_count = sum(character.isascii() for character in text)
    return round(ascii_count / 4 + (len(text) - ascii_count) / 1.5)


def print_estimate(config: Config, stage: str) -> None:
    """The estimate as a line, if the stage asks an LLM; on the main process only."""
    if not is_main_process():
        return
    judges, attempts = config.judge.eval, len(config.evaluate.attempts)
    if stage == "rl":
        judges = [config.judge.train, *config.judge.watching.values(), *judges]
    has_api, asks = stage != "rl" and config.evaluate.api, any(judge.name == "llm" for judge in judges)
    if not (has_api or asks):
        return
    domain = make_domain(config.environment, config.data)
    if has_api:
        trajectories = len(domain.read_test_set()[0]) * attempts * len(config.evaluate.api)
        calls = trajectories * config.test_turns
        print(f"closed models: {trajectories:,} trajectories, at most {calls:,} calls", flush=True)
    if not asks:
        return
    queries, baselines = domain.read_test_set()
    if not baselines:
        limits = "judge.max_calls and judge.max_cost are limits"
        print(f"estimate for {stage}: none, as no baselines are stored to size prompts by; {limits}", flush=True)
        return
    if stage == "rl":
        try:
            usage = estimate_rl(config, queries[:5], baselines)
        except UserError as error:
            print(f"estimate for rl: none: {error}", flush=True)
            return
    else:
        cases = len(queries) * attempts * len(config.evaluated)
        usage = _estimate_cases(config, queries[:5], baselines, _CountingClient(), cases)
    tokens = f"{usage.tokens_in / 1e6:.2f}M tokens in, {usage.tokens_out / 1e6:.2f}M out"
    cost = f"cost {usage.cost:.2f} by the config's prices; thinking is extra"
    print(f"estimate for {stage}: about {usage.calls:,} judge calls, {tokens}, {cost}", flush=True)
