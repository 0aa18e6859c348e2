"""What a stage will ask of LLMs and cost, said before it starts.
A guess: lengths are typical ones, and the store may hold replies already."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from arenarl.config.schema import BuildConfig, LLMConfig
from arenarl.llm.client import Message
from arenarl.trajectory import Trajectory

TURNS = 5  # of a trajectory
QUERY_TOKENS, TURN_TOKENS, OBSERVATION_TOKENS, FINDING_TOKENS = 60, 150, 300, 100
FAILING = 0.3  # share of trajectories that a round of inspection sends back


class Calls(NamedTuple):
    """So many calls of one LLM, with these tokens each."""

    llm: LLMConfig
    count: int
    tokens_in: float
    tokens_out: float


def of_queries(build: BuildConfig, wanted: int, seeds: int, prompt: float) -> list[Calls]:
    """`prompt`: tokens of a prompt that shows the tools."""
    drawn, generators = -(-max(wanted - seeds, 0) // build.queries_per_call), build.generators
    calls = []
    for number, generator in enumerate(generators):
        count = drawn // len(generators) + (number < drawn % len(generators))
        calls.append(Calls(generator, count, prompt, build.queries_per_call * QUERY_TOKENS))
    return calls + [Calls(llm, wanted, prompt, QUERY_TOKENS) for llm in (build.refiner, build.extractor)]


def of_trajectories(teacher: LLMConfig, count: int, prompt: float) -> list[Calls]:
    """Every turn sends all before it again."""
    earlier = TURNS * (TURNS - 1) / 2 * (TURN_TOKENS + OBSERVATION_TOKENS)
    return [Calls(teacher, count * TURNS, prompt + earlier / TURNS, TURN_TOKENS)]


def of_matches(judge: LLMConfig, matches: int) -> list[Calls]:
    """Both orders of each."""
    return [Calls(judge, 2 * matches, 2 * TURNS * (TURN_TOKENS + OBSERVATION_TOKENS), FINDING_TOKENS)]


def of_inspection(build: BuildConfig, trajectories: Sequence[Trajectory], prompt: float) -> list[Calls]:
    """All of them, and what is rewritten, a last turn or two, and inspected again."""
    calls, left = [], float(len(trajectories))
    length = sum(tokens_of(trajectory.messages) for trajectory in trajectories) / max(len(trajectories), 1)
    for number in range(build.rounds + 1):
        calls.append(Calls(build.inspector, round(left), prompt + length, 3 * FINDING_TOKENS))
        left *= FAILING
        if number < build.rounds:
            calls.append(Calls(build.who_rewrites, round(2 * left), prompt + length, TURN_TOKENS))
    return calls


def summary(estimate: Sequence[Calls]) -> str:
    """Calls, tokens and cost in words. An LLM that is left out (`embedded`) is not called."""
    asked = [calls for calls in estimate if calls.llm.name != "embedded" and calls.count]
    tokens, cost, has_prices = 0, 0.0, True
    for llm, count, tokens_in, tokens_out in asked:
        tokens += round(count * (tokens_in + tokens_out))
        cost += llm.cost(round(count * tokens_in), round(count * tokens_out))
        has_prices &= llm.price_in is not None and llm.price_out is not None
    cost = f"cost about {cost:.2f}" if has_prices else "cost not known: price_in and price_out are not set"
    return f"about {sum(calls.count for calls in asked):,} calls, {tokens:,} tokens, {cost}"


def tokens_of(messages: Sequence[Message | dict[str, Any]]) -> float:
    """A quarter of the characters."""
    return len(json.dumps(messages, ensure_ascii=False)) / 4
