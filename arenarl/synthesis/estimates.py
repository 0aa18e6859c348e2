"""Estimate a stage's LLM calls and cost before it starts, from typical lengths; stored replies are not considered."""

from collections.abc import Sequence
from typing import NamedTuple

from arenarl.config.schema import LLMConfig
from arenarl.domains.domain import even_counts
from arenarl.llm.reply_store import cost_text
from arenarl.synthesis.build import Build, tokens_of
from arenarl.synthesis.seeds import TEST_SEED
from arenarl.trajectory import read_jsonl

TURNS = 5  # per trajectory
QUERY_TOKENS, TURN_TOKENS, OBSERVATION_TOKENS, FINDING_TOKENS = 60, 150, 300, 100
FAILING = 0.3  # share of trajectories that fail a round of inspection


class Calls(NamedTuple):
    """A number of calls of one LLM."""

    llm: LLMConfig
    count: int
    tokens_in: float  # per call
    tokens_out: float


def of_queries(build: Build) -> list[Calls]:
    """Estimate the stage `queries`. Test seeds are refined too, beside the wanted queries."""
    config, prompt, generators = build.build, build.prompt_tokens, build.build.generators
    tests = sum(seed.origin == TEST_SEED for seed in build.seeds)
    wanted = build.wanted.total()
    count = -(-max(wanted - len(build.seeds) + tests, 0) // config.queries_per_call)
    tokens_out = config.queries_per_call * QUERY_TOKENS
    shares = even_counts(count, generators) if generators else ()
    calls = [Calls(generator, share, prompt, tokens_out) for generator, share in shares]
    return calls + [Calls(llm, wanted + tests, prompt, QUERY_TOKENS) for llm in (config.refiner, config.extractor)]


def of_trajectories(build: Build) -> list[Calls]:
    """Estimate the teacher's calls, where a turn sends all earlier turns again, and the judge's, two per match."""
    split_of = build.split_of
    sft, test = len(split_of["sft"]), len(split_of["test"])
    attempts, baselines = build.build.attempts, build.config.data.baseline_attempts
    solved = sft * attempts + test * baselines
    matches = sft * (attempts - 1) + test * baselines * (baselines - 1) // 2
    tokens = build.prompt_tokens + (TURNS - 1) / 2 * (TURN_TOKENS + OBSERVATION_TOKENS)
    view = 2 * TURNS * (TURN_TOKENS + OBSERVATION_TOKENS)
    return [
        Calls(build.build.teacher, solved * TURNS, tokens, TURN_TOKENS),
        Calls(build.config.judge.train, 2 * matches, view, FINDING_TOKENS),
    ]


def of_inspection(build: Build) -> list[Calls]:
    """Estimate the stage `inspect`: all trajectories once, then failing ones again, with two turns rewritten."""
    lengths = [tokens_of(record["messages"]) for record in read_jsonl(build.path("trajectories.jsonl"))]
    calls, left = [], float(len(lengths))
    tokens = build.prompt_tokens + sum(lengths) / max(len(lengths), 1)
    for number in range(build.build.rounds + 1):
        calls.append(Calls(build.build.inspector, round(left), tokens, 3 * FINDING_TOKENS))
        left *= FAILING
        if number < build.build.rounds:
            calls.append(Calls(build.build.rewriting_llm, round(2 * left), tokens, TURN_TOKENS))
    return calls


def summary(estimate: Sequence[Calls]) -> str:
    """Return calls, tokens and cost as a text. An LLM with the name `embedded` is not called."""
    paid = [calls for calls in estimate if calls.llm.name != "embedded" and calls.count]
    tokens, cost, has_prices = 0, 0.0, True
    for llm, count, tokens_in, tokens_out in paid:
        tokens += round(count * (tokens_in + tokens_out))
        cost += llm.cost(round(count * tokens_in), round(count * tokens_out))
        has_prices &= llm.price_in is not None and llm.price_out is not None
    price = f"cost about {cost_text(cost)}" if has_prices else "cost unknown: set price_in and price_out"
    return f"about {sum(calls.count for calls in paid):,} calls, {tokens:,} tokens, {price}"
