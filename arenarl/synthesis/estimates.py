"""What a stage will ask of LLMs and cost, said before it starts.
A guess: lengths are typical ones, and the store may hold replies already."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arenarl.config.schema import BuildConfig, LLMConfig
from arenarl.llm.client import Message
from arenarl.trajectory import Trajectory

TURNS = 5  # of a trajectory
QUERY_TOKENS, TURN_TOKENS, OBSERVATION_TOKENS, FINDING_TOKENS = 60, 150, 300, 100
FAILING = 0.3  # share of trajectories that a round of inspection sends back


@dataclass(frozen=True)
class Estimate:
    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    has_prices: bool = True

    def __add__(self, other: "Estimate") -> "Estimate":
        has_prices = self.has_prices and other.has_prices
        return Estimate(self.calls + other.calls, self.tokens + other.tokens, self.cost + other.cost, has_prices)

    def __str__(self) -> str:
        cost = (
            f"cost about {self.cost:.2f}" if self.has_prices else "cost not known: price_in and price_out are not set"
        )
        return f"about {self.calls:,} calls, {self.tokens:,} tokens, {cost}"


def of_calls(llm: LLMConfig, calls: int, tokens_in: float, tokens_out: float) -> Estimate:
    """Of so many calls with these tokens each; none of an LLM that is left out."""
    if llm.name == "embedded" or not calls:
        return Estimate()
    known = llm.price_in is not None and llm.price_out is not None
    return Estimate(
        calls,
        round(calls * (tokens_in + tokens_out)),
        llm.cost(round(calls * tokens_in), round(calls * tokens_out)),
        known,
    )


def of_queries(build: BuildConfig, wanted: int, seeds: int, prompt: float) -> Estimate:
    """`prompt`: tokens of a prompt that shows the tools."""
    calls = -(-max(wanted - seeds, 0) // build.queries_per_call)
    whole = Estimate()
    for number, generator in enumerate(build.generators):
        share = calls // len(build.generators) + (number < calls % len(build.generators))
        whole += of_calls(generator, share, prompt, build.queries_per_call * QUERY_TOKENS)
    return (
        whole
        + of_calls(build.refiner, wanted, prompt, QUERY_TOKENS)
        + of_calls(build.extractor, wanted, prompt, QUERY_TOKENS)
    )


def of_trajectories(teacher: LLMConfig, count: int, prompt: float) -> Estimate:
    """Every turn sends all before it again."""
    earlier = TURNS * (TURNS - 1) / 2 * (TURN_TOKENS + OBSERVATION_TOKENS)
    return of_calls(teacher, count * TURNS, prompt + earlier / TURNS, TURN_TOKENS)


def of_matches(judge: LLMConfig, matches: int) -> Estimate:
    """Both orders of each."""
    return of_calls(judge, 2 * matches, 2 * TURNS * (TURN_TOKENS + OBSERVATION_TOKENS), FINDING_TOKENS)


def of_inspection(build: BuildConfig, trajectories: Sequence[Trajectory], prompt: float) -> Estimate:
    """All of them, and what is rewritten, a last turn or two, and inspected again."""
    whole, left = Estimate(), float(len(trajectories))
    length = sum(tokens_of(trajectory.messages) for trajectory in trajectories) / max(len(trajectories), 1)
    for number in range(build.rounds + 1):
        whole += of_calls(build.inspector, round(left), prompt + length, 3 * FINDING_TOKENS)
        left *= FAILING
        if number < build.rounds:
            whole += of_calls(build.who_rewrites, round(2 * left), prompt + length, TURN_TOKENS)
    return whole


def tokens_of(messages: Sequence[Message | dict[str, Any]]) -> float:
    """A quarter of the characters."""
    return len(json.dumps(messages, ensure_ascii=False)) / 4
