"""The rollout engine: query → Trajectory, query → RolloutGroup. Training and evaluation both use it.

Each trajectory is a coroutine: generate a turn, run its tool calls, append their results, until an answer or a budget
ends it. Token ids are only appended, never re-tokenised, so the trainer sees exactly the tokens that the policy chose.
This module alone makes the anchor: row 0 of a training group, greedy (Section 4.2, ArenaRL).
"""

import asyncio
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from arenarl.config.schema import EnvironmentConfig, RolloutConfig
from arenarl.config.value_types import ActionForm
from arenarl.rollout.chat_template import bounded_ids, chat_encoder
from arenarl.rollout.environment import (
    Environment,
    Step,
    ToolCrash,
    begin,
    final_score,
    step,
    sum_of_rewards,
    trait,
    wrap_crashes,
)
from arenarl.rollout.generation import Generator, TurnRequest, run_turns
from arenarl.rollout.instances import Instances
from arenarl.rollout.kv_cache import TrajectoryCache
from arenarl.rollout.policy import Limit, NoRoom
from arenarl.rollout.text_actions import action_message, action_tool
from arenarl.system.errors import show
from arenarl.system.seeds import stable_seed
from arenarl.trajectory.messages import ToolCall, assistant_message, parse_turn, tool_message
from arenarl.trajectory.text import storable
from arenarl.trajectory.vocabulary import Query, RolloutGroup, StopReason, Trajectory, prompt_messages

LONGEST = 20  # number of queries, by length of text, whose prompts are tokenised to find the longest prompt
NO_ACTION = "Error: this turn has no action."
ONE_ACTION = "Error: only one action a turn is allowed, and none of these was carried out."
ANSWER_START = "<think>\n\n</think>\n\n<answer>\n"
GAP = "\n[…]\n"  # stands for the middle of a tool result that is too long
Tick = Callable[[int, Trajectory], None]  # called with an attempt's index and its trajectory


@dataclass(frozen=True)
class Attempt:
    """A trajectory to roll out; temperature 0 is greedy, `max_turns` None means `rollout.max_turns`.
    After `max_seconds`, if set, it is void."""

    query: Query
    temperature: float
    seed: int
    max_turns: int | None = None
    max_seconds: float | None = None


def longest_prompt(engine: "RolloutEngine", queries: Sequence[Query]) -> int:
    """Return the number of tokens of the longest prompt. Only the `LONGEST` queries with the longest texts are
    tokenised."""
    longest = sorted(queries, key=lambda query: len(query.query))[-LONGEST:]
    return max(len(engine.prompt_ids(query)) for query in longest)


def attempts_at(
    queries: Sequence[Query], temperature: float, seed: int, sample: int = 0, max_turns: int | None = None
) -> list[Attempt]:
    """Return evaluation's attempts, one for every query; `sample` numbers repeated attempts at a query."""
    repeat = (sample,) if sample else ()
    seeds = [stable_seed(seed, "evaluate", query.query_id, *repeat) for query in queries]
    return [Attempt(query, temperature, seed, max_turns) for query, seed in zip(queries, seeds, strict=True)]


@dataclass
class Progress:
    """A trajectory in progress."""

    messages: list[dict[str, Any]]
    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    policy_mask_T: list[int] = field(default_factory=list)
    logprobs_T: list[float | None] = field(default_factory=list)
    cache: TrajectoryCache = field(default_factory=TrajectoryCache, repr=False)
    tool_calls: int = 0
    tool_errors: int = 0
    rewards: list[float] = field(default_factory=list)  # the environment's, so far

    @property
    def length(self) -> int:
        """Number of tokens after the prompt, observations included."""
        return len(self.completion_ids)

    @property
    def policy_tokens(self) -> int:
        return sum(self.policy_mask_T)

    def append(self, token_ids: list[int], is_own: bool, logprobs_T: list[float] | None = None) -> None:
        self.completion_ids += token_ids
        self.policy_mask_T += [int(is_own)] * len(token_ids)
        self.logprobs_T += logprobs_T or [None] * len(token_ids)

    def add_observations(self, steps: list[Step]) -> list[dict[str, str]]:
        """Count a turn's calls, errors and rewards, append its observations as messages, and return these messages."""
        self.tool_calls += len(steps)
        self.tool_errors += sum(step.observation.startswith("Error") for step in steps)
        self.rewards += [step.reward for step in steps if step.reward is not None]
        messages = [tool_message(step.observation) for step in steps]
        if "actions" in self.messages[-1]:  # many chat templates refuse two user messages in a row
            messages = [{"role": "user", "content": "\n".join(message["content"] for message in messages)}]
        self.messages += messages
        return messages

    def end(self, query_id: str, stop_reason: StopReason) -> Trajectory:
        """Return the finished trajectory, without observation tokens after the last turn: they have no loss."""
        length = len(self.policy_mask_T)
        while length and not self.policy_mask_T[length - 1]:
            length -= 1
        turns = sum(message["role"] == "assistant" for message in self.messages)
        meta = {"turns": turns, "tool_calls": self.tool_calls, "tool_errors": self.tool_errors}
        meta["policy_tokens"] = self.policy_tokens
        if self.rewards:
            meta["reward"] = sum_of_rewards(self.rewards)
        arrays_T = {name: getattr(self, name)[:length] for name in ("completion_ids", "policy_mask_T", "logprobs_T")}
        return Trajectory(query_id, self.messages, stop_reason, prompt_ids=self.prompt_ids, meta=meta, **arrays_T)


class RolloutEngine:
    """Rolls out queries within the budgets of `RolloutConfig`, each trajectory in an environment of its own.

    `system` is the system prompt, if any. `max_instances` bounds the environments in use at once; None means no bound.
    `timeout_s` limits each call of an environment's method.
    `limit`, if set, is the policy's longest sequence. If a query's prompt leaves too little of it for `max_tokens`, the
    first rollout raises NoRoom; in later rollouts, and after a long first observation, the trajectory is void.
    """

    limit: Limit | None = None
    is_checked: bool = False  # `require_room` has been called

    def __init__(
        self, generator: Generator, tokenizer: PreTrainedTokenizerBase, make_environment: Callable[[], Environment],
        config: RolloutConfig, schemas_in_prompt: bool = True, system: str | None = None,
        actions: ActionForm = "tool_calls", max_instances: int | None = None,
        timeout_s: float = EnvironmentConfig.timeout_s,
    ):  # fmt: skip
        self.generator = generator
        self.tokenizer = tokenizer
        self.config = config
        self.system = system
        self._shown_crashes: set[tuple[type, str]] = set()
        self._has_shown_no_room = False
        self._prompts: dict[tuple[str, ...], list[int]] = {}  # by the contents of a prompt's messages
        self.instances, self.max_instances = Instances(make_environment, self._show, timeout_s), max_instances
        tools = self.instances.first.tools
        self.action_tool = action_tool(tools) if actions == "text" else None  # the tool that an action in text calls
        self.tools = tools if schemas_in_prompt and not self.action_tool else None
        self.encoder = chat_encoder(tokenizer) if tokenizer else None
        self.shown_names: dict[str, str] = {}  # a tool's name in the prompt: its name, where these differ
        if self.encoder:
            self.encoder.require(system, self.tools, actions)
            names = (tool["function"]["name"] for tool in tools)
            self.shown_names = {shown: name for name in names if (shown := self.encoder.harmless(name)) != name}

    def roll_out_groups(
        self, queries: Sequence[Query], seed: int, max_turns: int | None = None, tick: Tick | None = None
    ) -> list[RolloutGroup]:
        """Roll out `group_size` trajectories for every query; row 0 is the greedy anchor if `rollout.anchor` is set.

        `tick` is called as each trajectory ends, with its index counted over all groups.
        """
        n, has_anchor = self.config.group_size, self.config.anchor
        temperatures = [self.config.temperature] * n
        if has_anchor:
            temperatures[0] = 0.0
        attempts = [
            Attempt(query, temperature, stable_seed(seed, query.query_id, row), max_turns, self.config.max_seconds)
            for query in queries
            for row, temperature in enumerate(temperatures)
        ]

        def mark_anchor(index: int, trajectory: Trajectory) -> None:
            trajectory.is_anchor = has_anchor and index % n == 0
            if tick:
                tick(index, trajectory)

        trajectories = self.roll_out(attempts, mark_anchor)
        return [RolloutGroup(query, trajectories[index * n : (index + 1) * n]) for index, query in enumerate(queries)]

    def roll_out(self, attempts: Sequence[Attempt], tick: Tick | None = None) -> list[Trajectory]:
        """Return trajectories in the order of the attempts. `tick` is called as each ends; its exceptions abort all.

        The trajectories run concurrently: at most `max_instances`, and at most the generator's `batch_size` if it
        has one, because it keeps a cache for each.
        """
        self._prompts.clear()
        if not self.is_checked:
            self.require_room(list({attempt.query.query_id: attempt.query for attempt in attempts}.values()))
        limits = getattr(self.generator, "batch_size", None), self.max_instances, len(attempts) or 1
        places = asyncio.Semaphore(min(limit for limit in limits if limit))

        async def run_one(index: int, attempt: Attempt) -> Trajectory:
            async with places:
                trajectory = await self._run(attempt)
            if tick:
                tick(index, trajectory)
            return trajectory

        async def run() -> list[Trajectory]:
            return await asyncio.gather(*(run_one(index, attempt) for index, attempt in enumerate(attempts)))

        return run_turns(self.generator, run())

    async def _run(self, attempt: Attempt) -> Trajectory:
        """Roll out an attempt. After a tool crash, retry once in a new environment, from the same seed.
        The time limit holds for both together."""
        loop, limit = asyncio.get_running_loop(), attempt.max_seconds
        deadline = None if limit is None else loop.time() + limit
        trajectory = await self._try(attempt, deadline)
        if trajectory.stop_reason == "tool_crash":
            crash = trajectory.meta["crash"]
            trajectory = await self._try(attempt, deadline, is_fresh=True)
            trajectory.meta["begun_again"] = crash
        return trajectory

    async def _try(self, attempt: Attempt, deadline: float | None, is_fresh: bool = False) -> Trajectory:
        progress, timeout = None, asyncio.timeout_at(deadline)
        try:
            async with timeout, self.instances.borrow(is_fresh) as environment:
                try:
                    progress = self._start(attempt.query, await begin(environment, attempt.query))
                    trajectory = await self._take_turns(progress, environment, attempt)
                except NoRoom as error:  # the environment can be used again
                    trajectory = self._end_without_room(progress, attempt.query, error)
                    if trajectory.is_void:
                        return trajectory
                with wrap_crashes():
                    has_score = callable(getattr(environment, "score", None))
                if has_score:
                    score = await final_score(environment)
                    if score is not None or not progress.rewards:  # without a score the sum of the steps' rewards stays
                        trajectory.meta["reward"] = score
                return trajectory
        except ToolCrash as crash:
            self._show(crash)
            trajectory = self._end_void(progress, attempt.query, "tool_crash")
            trajectory.meta["crash"] = storable(str(crash))[:300]
            return trajectory
        except TimeoutError:
            if not timeout.expired():
                raise
            return self._end_void(progress, attempt.query, "max_seconds")

    def _end_void(self, progress: Progress | None, query: Query, stop_reason: StopReason) -> Trajectory:
        """Return a trajectory that ended early, without a reward; `progress` is None if it did not start."""
        if progress is None:
            try:
                progress = self._start(query)
            except NoRoom:  # TRL needs a prompt of void trajectories too, and gives it no loss
                progress = Progress(prompt_messages(query, self.system), [self.tokenizer.eos_token_id])
        progress.rewards = []
        return progress.end(query.query_id, stop_reason)

    def _end_without_room(self, progress: Progress | None, query: Query, error: NoRoom) -> Trajectory:
        """Return a trajectory without room for its next turn, and print the first one.
        Before its first turn it is void. Later it ends for lack of tokens, which its own turns took."""
        if not self._has_shown_no_room:
            self._has_shown_no_room = True
            ends = "such a trajectory is void (rollout/no_room_rate), or after its first turn ends for lack of tokens"
            show(f"query {query.query_id}: {error}; {ends}")
        if progress and progress.policy_tokens:
            return progress.end(query.query_id, "max_tokens")
        trajectory = self._end_void(progress, query, "no_room")
        trajectory.meta["no_room"] = storable(str(error))[:300]
        return trajectory

    def _show(self, crash: ToolCrash) -> None:
        """Print a crash's traceback, once for each exception type and line of code."""
        error = crash.__cause__
        kind = type(error), str(traceback.extract_tb(error.__traceback__)[-1:])
        if kind not in self._shown_crashes:
            self._shown_crashes.add(kind)
            report = "".join(traceback.format_exception(error))
            show(f"A tool crashed; retrying its trajectory once, then excluding it:\n{report}")

    async def _take_turns(self, progress: Progress, environment: Environment, attempt: Attempt) -> Trajectory:
        """Alternate turns and observations until an answer or a budget ends the trajectory (Eq. 1, ArenaRL)."""
        query_id, needs_answer = attempt.query.query_id, trait(environment, "needs_answer")
        max_turns, max_turn_tokens = attempt.max_turns or self.config.max_turns, self.config.max_turn_tokens
        for turn_number in range(max_turns):
            left = self.config.max_tokens - progress.length
            if left <= 0:
                return progress.end(query_id, "max_tokens")
            is_last = turn_number + 1 == max_turns or left <= max_turn_tokens
            must_answer = self.config.force_answer and is_last and needs_answer
            budget = min(left, max_turn_tokens)
            is_whole = await self._take_turn(progress, attempt, turn_number, budget, must_answer)
            turn = parse_turn(progress.messages[-1])
            if not is_whole:
                return progress.end(query_id, "max_tokens")
            if must_answer or (needs_answer and not turn.tool_calls):
                return progress.end(query_id, "answer" if turn.answer else "no_answer")
            if not turn.tool_calls and trait(environment, "may_stop"):
                return progress.end(query_id, "done")
            steps = [
                replace(step, observation=self._shortened(step.observation))
                for step in await _act(environment, turn.tool_calls, self.shown_names)
            ]
            if steps[-1].done:
                progress.add_observations(steps)
                return progress.end(query_id, "done")
            self._append_observations(progress, steps)
        return progress.end(query_id, "max_turns" if needs_answer else "horizon")

    def tool_metrics(self) -> dict[str, list[float]]:
        """Return the values of each tool metric since the last call; the log takes their mean."""
        return self.instances.take_metrics()

    def prompt_ids(self, query: Query, first_observation: str | None = None) -> list[int]:
        """Return the prompt's token ids, the same for all trajectories of a query.
        Raises NoRoom, without tokenising it whole, for a text with far more tokens than `limit`."""
        messages = prompt_messages(query, self.system, first_observation)
        key = tuple(message["content"] for message in messages)
        if key not in self._prompts:
            *head, last = messages
            text = last["content"]

            def encode(size: int) -> list[int]:
                part = [*head, last | {"content": text[:size]}]
                return self.encoder.encode(part, self.tools, add_generation_prompt=True)

            token_ids = bounded_ids(encode, len(text), self.limit.tokens if self.limit else len(text))
            if self.limit and len(token_ids) > 2 * self.limit.tokens:
                remedy = "shorten it, or name another model"
                raise NoRoom(f"a prompt of {len(text):,} characters has more tokens than {self.limit}; {remedy}")
            self._prompts[key] = token_ids
        return list(self._prompts[key])

    def require_room(self, queries: Sequence[Query]) -> int | None:
        """Return the length of the longest prompt in tokens, without first observations.
        Without a limit or a query, return None. Raises NoRoom if `rollout.max_tokens` does not fit behind it."""
        self.is_checked = True
        if self.limit is None or not queries:
            return None
        prompt = longest_prompt(self, queries)
        self.limit.require_room(prompt, self.config.max_tokens)
        return prompt

    def _start(self, query: Query, first_observation: str | None = None) -> Progress:
        prompt_ids = self.prompt_ids(query, first_observation)
        if self.limit:
            self.limit.require_room(len(prompt_ids), self.config.max_tokens)
        return Progress(prompt_messages(query, self.system, first_observation), prompt_ids)

    def _message(self, text: str) -> dict[str, Any]:
        """Parse a generated turn; with `environment.actions: text` also its text actions."""
        return action_message(text, self.action_tool) if self.action_tool else assistant_message(text)

    async def _take_turn(
        self, progress: Progress, attempt: Attempt, turn_number: int, budget: int, must_answer: bool
    ) -> bool:
        """Generate and append the policy's next message. Return True if the policy ended the turn itself.

        With `must_answer` the turn starts with `ANSWER_START`. Greedy turns keep no logprobs: greedy tokens are
        not samples, so their logprobs cannot measure the back end's error.
        """
        start_ids = self._answer_start_ids if must_answer else []
        if len(start_ids) >= budget:
            progress.messages.append(assistant_message(""))
            return False
        progress.append(start_ids, is_own=False)
        seed, token_ids = stable_seed(attempt.seed, turn_number), progress.prompt_ids + progress.completion_ids
        request = TurnRequest(token_ids, budget - len(start_ids), attempt.temperature, seed, progress.cache)
        generated = await self.generator.generate(request)
        turn_ids = generated.token_ids
        is_whole = turn_ids[-1] == self.tokenizer.eos_token_id
        progress.append(turn_ids, is_own=True, logprobs_T=generated.logprobs_T if attempt.temperature else None)
        text = self.tokenizer.decode(start_ids + (turn_ids[:-1] if is_whole else turn_ids))
        progress.messages.append(self._message(text))
        return is_whole

    @cached_property
    def _answer_start_ids(self) -> list[int]:
        return self.encoder.start_ids(ANSWER_START)

    def _shortened(self, observation: str) -> str:
        """Return an observation of at most `max_result_tokens` tokens; a longer one loses its middle."""
        if (most := self.config.max_result_tokens) is None or self.tokenizer is None:
            return observation
        observation = storable(observation)

        def encode(part: str) -> list[int]:
            return self.tokenizer.encode(part, add_special_tokens=False)

        first = bounded_ids(lambda size: encode(observation[:size]), len(observation), most)
        if len(first) <= most:
            return observation
        last = bounded_ids(lambda size: encode(observation[-size:]), len(observation), most)
        left = max(0, most - len(encode(GAP)))
        halves = first[: left - left // 2], last[len(last) - left // 2 :]
        return GAP.join(self.tokenizer.decode(half).strip("\ufffd") for half in halves)

    def _append_observations(self, progress: Progress, steps: list[Step]) -> None:
        """Append the template's tokens between two assistant turns: the observations and the next turn's start.

        Of observations that cannot fit, only a part is tokenised, which is also too long. The trajectory then ends
        before its next turn, and drops these tokens.
        """
        observations = progress.add_observations(steps)

        def encode(size: int) -> list[int]:
            parts = []
            for message in observations:
                parts.append(message | {"content": message["content"][:size]})
                size -= len(parts[-1]["content"])
            return self.encoder.observation_ids(parts, self.tools, bool(self.system))

        length = sum(len(message["content"]) for message in observations)
        room = self.config.max_tokens - progress.length
        progress.append(bounded_ids(encode, length, room), is_own=False)


async def _act(environment: Environment, calls: Sequence[ToolCall], shown_names: Mapping[str, str]) -> list[Step]:
    """Run a turn's calls in order and return their results, up to a call that ends the trajectory.
    `shown_names` maps tools' names in the prompt to their names, where these differ."""
    if not calls:
        return [Step(NO_ACTION)]
    if len(calls) > 1 and trait(environment, "one_call_a_turn"):
        return [Step(ONE_ACTION)] * len(calls)
    steps = []
    for call in calls:
        steps.append(await step(environment, shown_names.get(call.name, call.name), call.arguments))
        if steps[-1].done:
            break
    return steps
