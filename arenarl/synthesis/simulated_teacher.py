"""The local server's teacher and rewriter: the domain's scripted teacher, a turn a request.

What an attempt will be is drawn when its conversation begins, and remembered for its next turns. Each reply is the
attempt's first turn whose calls the conversation lacks, so that it goes on from what somebody else began, too.
"""

import json
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from arenarl.synthesis.query_pool import QueryPool
from arenarl.system.database import json_hash
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import (
    Query,
    ToolCall,
    Trajectory,
    assistant_text,
    language_of,
    native_calls,
    parse_turn,
    read_turns,
    reply_message,
    text_of,
)

Solve = Callable[[Query, random.Random, float], Trajectory]
Call = tuple[str, str]  # its name, its arguments as JSON
REFUSAL = {"en": "I'm sorry, but I can't help with that.", "zh": "抱歉，我无法处理这个请求。"}
_CONVERSATIONS = 100_000  # that are remembered


@dataclass(frozen=True)
class Plan:
    """What an attempt will be."""

    seed: int
    skill: float
    repeats_a_call: bool = False
    refuses: bool = False


class SimulatedTeacher:
    """Args:
    solve: the domain's.
    mistakes: the chance that each good habit is off.
    A tenth of it is that of a refusal, a half that of a call made twice, and a half
        that the rewriter has no good habit.
    """

    def __init__(self, pool: QueryPool, solve: Solve, seed: int, mistakes: float):
        self.pool, self.solve, self.seed, self.mistakes = pool, solve, seed, mistakes
        self._begun: OrderedDict[str, list[Plan]] = OrderedDict()  # by the hash of a conversation so far
        self._turns = lru_cache(maxsize=4096)(self._solved)

    def reply(self, messages: Sequence[dict[str, Any]], is_rewriter: bool, repeat: int, seed: int | None = None) -> str:
        """The turn that comes next; `repeat` numbers the replies to these very messages, `seed` is the request's."""
        asked = next((text_of(message["content"]) for message in messages if message["role"] == "user"), "")
        if (query := self.pool.find(asked)) is None:
            return REFUSAL[language_of(asked)]
        messages = [{"seed": seed, "role": "seed"}, *messages]  # another seed makes another conversation
        plan = self._plan(messages, is_rewriter, repeat)
        text = REFUSAL[query.language] if plan.refuses else _next_turn(self._turns(query, plan), _calls_of(messages))
        self._remember(json_hash([*messages, {"role": "assistant", "content": text}]), plan)
        return text

    def _plan(self, messages: Sequence[dict[str, Any]], is_rewriter: bool, repeat: int) -> Plan:
        """That of the conversation, or a new one. Of several that were the same so far, each goes on once."""
        last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        if begun := self._begun.get(json_hash(messages[: last + 1])):
            return begun[min(repeat, len(begun) - 1)]
        rng = random.Random(stable_seed(self.seed, is_rewriter, json_hash(messages), repeat))
        if is_rewriter:
            return Plan(0, 0.0 if rng.random() < self.mistakes / 2 else 1.0)
        return Plan(
            rng.getrandbits(32), 1 - self.mistakes, rng.random() < self.mistakes / 2, rng.random() < self.mistakes / 10
        )

    def _remember(self, conversation: str, plan: Plan) -> None:
        begun = self._begun.setdefault(conversation, [])
        if plan not in begun:
            begun.append(plan)
        if len(self._begun) > _CONVERSATIONS:
            self._begun.popitem(last=False)

    def _solved(self, query: Query, plan: Plan) -> list[tuple[Counter[Call], str]]:
        """Each turn's calls and its text."""
        messages = self.solve(query, random.Random(plan.seed), plan.skill).messages
        said = [message for message in messages if message["role"] == "assistant"]
        turns = [
            (_counted(turn.tool_calls), assistant_text(message))
            for turn, message in zip(read_turns(messages), said, strict=True)
        ]
        return [turns[0], *turns] if plan.repeats_a_call and turns[0][0] else turns


def _next_turn(turns: Sequence[tuple[Counter[Call], str]], made: Counter[Call]) -> str:
    """The first turn whose calls were not all made, or the last, which makes none."""
    for calls, text in turns:
        if not calls or calls - made:
            return text
        made = made - calls
    return turns[-1][1]


def _calls_of(messages: Sequence[dict[str, Any]]) -> Counter[Call]:
    """All calls of a conversation in an API's form."""
    said = [message for message in messages if message["role"] == "assistant"]
    turns = [parse_turn(reply_message(message, [call for _, call in native_calls(message)])) for message in said]
    return _counted([call for turn in turns for call in turn.tool_calls])


def _counted(calls: Sequence[ToolCall]) -> Counter[Call]:
    return Counter((call.name, json.dumps(call.arguments, sort_keys=True)) for call in calls)
