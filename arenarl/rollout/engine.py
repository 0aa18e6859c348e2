"""The rollout engine: query → Trajectory, query → RolloutGroup. Training and evaluation both use it.

A trajectory is a coroutine that reads like the loop it is: generate a turn, run its tool calls, append what they returned,
until an answer or a budget ends it. Token ids are only ever appended, never re-tokenised, so what the trainer sees is what
the policy chose. This module alone decides who is the anchor (row 0 of a training group, greedy; 4.2).
"""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from arenarl.config.schema import RolloutConfig
from arenarl.rollout.environment import Environment, ToolCrash, crashing, observe
from arenarl.rollout.generation import Generator, TurnRequest, run_turns
from arenarl.rollout.kv_cache import TrajectoryCache
from arenarl.system.errors import show
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import (
    Query,
    RolloutGroup,
    StopReason,
    Trajectory,
    assistant_message,
    parse_turn,
    prompt_messages,
    storable,
    tool_message,
)

LONGEST = 20  # queries whose prompts are counted to find the longest
ANSWER_BEGUN = "<think>\n\n</think>\n\n<answer>\n"
Tick = Callable[[int, Trajectory], None]  # told of the index of an attempt and the trajectory that it became


def ignore(index: int, trajectory: Trajectory) -> None:
    """The tick of those who wait for all."""


@dataclass(frozen=True)
class Attempt:
    """One trajectory to roll out: greedily (temperature 0) or sampled with `seed`; `max_turns` None takes `rollout.max_turns`."""

    query: Query
    temperature: float
    seed: int
    max_turns: int | None = None


def longest_prompt(engine: "RolloutEngine", queries: Sequence[Query]) -> int:
    """Tokens of the longest prompt, of the queries whose texts are longest."""
    return max(len(engine.prompt_ids(query)) for query in sorted(queries, key=lambda query: len(query.query))[-LONGEST:])


def attempts_at(queries: Sequence[Query], temperature: float, seed: int, sample: int = 0, max_turns: int | None = None) -> list[Attempt]:
    """The evaluation's: one trajectory of every query; `sample` numbers the trajectories of a query."""
    again = (sample,) if sample else ()
    return [Attempt(query, temperature, stable_seed(seed, "evaluate", query.query_id, *again), max_turns) for query in queries]


@dataclass
class Progress:
    """A trajectory under way."""

    messages: list[dict[str, Any]]
    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    policy_mask_T: list[int] = field(default_factory=list)
    logprobs_T: list[float | None] = field(default_factory=list)
    cache: TrajectoryCache = field(default_factory=TrajectoryCache, repr=False)
    tool_calls: int = 0
    tool_errors: int = 0

    @property
    def length(self) -> int:
        """Tokens after the prompt so far, observations included."""
        return len(self.completion_ids)

    @property
    def policy_tokens(self) -> int:
        return sum(self.policy_mask_T)

    def append(self, token_ids: list[int], is_own: bool, logprobs_T: list[float] | None = None) -> None:
        self.completion_ids += token_ids
        self.policy_mask_T += [int(is_own)] * len(token_ids)
        self.logprobs_T += logprobs_T or [None] * len(token_ids)

    def note(self, observations: list[str]) -> list[dict[str, str]]:
        """Count what the calls of a turn returned; the messages that say it."""
        self.tool_calls += len(observations)
        self.tool_errors += sum(observation.startswith("Error") for observation in observations)
        messages = [tool_message(observation) for observation in observations]
        self.messages += messages
        return messages

    def end(self, query_id: str, stop_reason: StopReason) -> Trajectory:
        length = len(self.policy_mask_T)
        while length and not self.policy_mask_T[length - 1]:  # an observation that no turn followed teaches nothing
            length -= 1
        turns = sum(message["role"] == "assistant" for message in self.messages)
        return Trajectory(
            query_id,
            self.messages,
            stop_reason,
            prompt_ids=self.prompt_ids,
            completion_ids=self.completion_ids[:length],
            policy_mask_T=self.policy_mask_T[:length],
            logprobs_T=self.logprobs_T[:length],
            meta={
                "turns": turns,
                "tool_calls": self.tool_calls,
                "tool_errors": self.tool_errors,
                "policy_tokens": self.policy_tokens,
            },
        )


class RolloutEngine:
    """Rolls out queries with a generator, each trajectory in an environment of its own, within the budgets of `RolloutConfig`."""

    def __init__(
        self,
        generator: Generator,
        tokenizer: PreTrainedTokenizerBase,
        make_environment: Callable[[], Environment],
        config: RolloutConfig,
        schemas_in_prompt: bool = True,
        system: str | None = None,
    ):
        self.generator = generator
        self.tokenizer = tokenizer
        self.make_environment = make_environment
        self.config = config
        self.tools = make_environment().tools if schemas_in_prompt else None
        self.system = system  # what stands before every query; None: nothing
        self._crashes: set[tuple[type, str]] = set()  # those that were shown

    def roll_out_groups(self, queries: Sequence[Query], seed: int, max_turns: int | None = None, tick: Tick = ignore) -> list[RolloutGroup]:
        """A group of `group_size` trajectories for every query; row 0 is the greedy anchor iff `rollout.anchor`.

        `tick` is called as each trajectory ends, with its index counted over all groups.
        """
        n = self.config.group_size

        def mark_anchor(index: int, trajectory: Trajectory) -> None:
            trajectory.is_anchor = self.config.anchor and index % n == 0
            tick(index, trajectory)

        attempts = [
            Attempt(query, 0.0 if self.config.anchor and row == 0 else self.config.temperature, stable_seed(seed, query.query_id, row), max_turns)
            for query in queries
            for row in range(n)
        ]
        trajectories = self.roll_out(attempts, mark_anchor)
        return [RolloutGroup(query, trajectories[index * n : (index + 1) * n]) for index, query in enumerate(queries)]

    def roll_out(self, attempts: Sequence[Attempt], tick: Tick = ignore) -> list[Trajectory]:
        """Trajectories in the order of the attempts; `tick` is called as each ends. What it raises ends all.

        All are under way at once, or as many as a generator that keeps their caches has a `batch_size` for.
        """
        places = asyncio.Semaphore(getattr(self.generator, "batch_size", None) or len(attempts) or 1)

        async def run_one(index: int, attempt: Attempt) -> Trajectory:
            async with places:
                trajectory = await self._run(attempt)
            tick(index, trajectory)
            return trajectory

        async def run() -> list[Trajectory]:
            return await asyncio.gather(*(run_one(index, attempt) for index, attempt in enumerate(attempts)))

        return run_turns(self.generator, run())

    async def _run(self, attempt: Attempt) -> Trajectory:
        environment, progress = self.make_environment(), self._start(attempt.query)
        try:
            with crashing():
                environment.reset(attempt.query)
            return await self._take_turns(progress, environment, attempt)
        except ToolCrash as crash:
            self._show(crash)
            trajectory = progress.end(attempt.query.query_id, "tool_crash")
            trajectory.meta["crash"] = storable(str(crash))[:300]
            return trajectory

    def _show(self, crash: ToolCrash) -> None:
        """The traceback, once of each kind of exception and place."""
        error = crash.__cause__
        kind = type(error), str(traceback.extract_tb(error.__traceback__)[-1:])
        if kind not in self._crashes:
            self._crashes.add(kind)
            show(f"A tool crashed; a trajectory that this ends is void, and counted:\n{''.join(traceback.format_exception(error))}")

    async def _take_turns(self, progress: Progress, environment: Environment, attempt: Attempt) -> Trajectory:
        """Thought and tool calls, observations, thought and tool calls, …, answer (Eq. 1)."""
        query_id = attempt.query.query_id
        for turn_number in range(attempt.max_turns or self.config.max_turns):
            left = self.config.max_tokens - progress.length
            if left <= 0:
                return progress.end(query_id, "max_tokens")
            is_last = turn_number + 1 == (attempt.max_turns or self.config.max_turns) or left <= self.config.max_turn_tokens
            must_answer = self.config.force_answer and is_last
            is_whole = await self._take_turn(progress, attempt, turn_number, min(left, self.config.max_turn_tokens), must_answer)
            turn = parse_turn(progress.messages[-1])
            if not is_whole:
                return progress.end(query_id, "max_tokens")
            if must_answer or not turn.tool_calls:
                return progress.end(query_id, "answer" if turn.answer else "no_answer")
            self._append_observations(progress, [await observe(environment, call.name, call.arguments) for call in turn.tool_calls])
        return progress.end(query_id, "max_turns")

    def tool_metrics(self) -> dict[str, list[float]]:
        """What the tools themselves have to log since this was last called, each as the values whose mean it is; most have nothing."""
        take = getattr(self.make_environment(), "take_metrics", None)
        try:
            with crashing():
                return take() if take else {}
        except ToolCrash as crash:
            self._show(crash)
            return {}

    def prompt_ids(self, query: Query) -> list[int]:
        """The tokens that every trajectory of the query starts from."""
        messages = prompt_messages(query, self.system)
        return list(self.tokenizer.apply_chat_template(messages, tools=self.tools, add_generation_prompt=True, return_dict=False))

    def _start(self, query: Query) -> Progress:
        return Progress(prompt_messages(query, self.system), self.prompt_ids(query))

    async def _take_turn(self, progress: Progress, attempt: Attempt, turn_number: int, budget: int, must_answer: bool) -> bool:
        """Append the policy's next message; whether it ended the turn itself. One that must answer finds its turn begun as an answer.

        A greedy turn was not drawn from the distribution that its logprobs are of: they say nothing of how far the back end is off.
        """
        begun = self.tokenizer.encode(ANSWER_BEGUN, add_special_tokens=False) if must_answer else []
        if len(begun) >= budget:
            progress.messages.append(assistant_message(""))
            return False
        progress.append(begun, is_own=False)
        budget -= len(begun)
        seed = stable_seed(attempt.seed, turn_number)
        request = TurnRequest(progress.prompt_ids + progress.completion_ids, budget, attempt.temperature, seed, progress.cache)
        generated = await self.generator.generate(request)
        turn_ids = generated.token_ids
        is_whole = turn_ids[-1] == self.tokenizer.eos_token_id
        progress.append(turn_ids, is_own=True, logprobs_T=generated.logprobs_T if attempt.temperature else None)
        progress.messages.append(assistant_message(self.tokenizer.decode(begun + (turn_ids[:-1] if is_whole else turn_ids))))
        return is_whole

    def _append_observations(self, progress: Progress, observations: list[str]) -> None:
        messages = progress.note(observations)
        progress.append(self._observation_ids(messages), is_own=False)

    def _observation_ids(self, tool_messages: list[dict[str, str]]) -> list[int]:
        """The tokens between the end of one assistant turn and the start of the next, as the chat template renders them."""
        head, length = self._before_observations
        text = self.tokenizer.apply_chat_template([*head, *tool_messages], tokenize=False, add_generation_prompt=True)
        return self.tokenizer.encode(text[length:], add_special_tokens=False)

    @cached_property
    def _before_observations(self) -> tuple[list[dict[str, str]], int]:
        """Messages that an observation may follow, and the length of their text up to the end of the turn."""
        head = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        text = self.tokenizer.apply_chat_template(head, tokenize=False)
        return head, text.rindex(self.tokenizer.eos_token) + len(self.tokenizer.eos_token)
