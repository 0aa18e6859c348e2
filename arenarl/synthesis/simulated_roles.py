"""The replies of the local server's roles to the prompts of `prompts`: right, except for a given share of mistakes.

Generators, refiner and extractor use the pool of the world's queries. The inspector sees only what the prompt contains,
and whether tool results contain the answer's facts, from the domain's truth. Teacher and rewriter play the domain's
scripted teacher, one turn per request. The first request of a conversation draws a plan for the whole attempt.
A reply is the plan's first turn whose calls the conversation lacks, so a role can also continue a conversation that
another role began.
"""

import json
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from arenarl.judges.judge import Examiner
from arenarl.judges.local_server import Reply
from arenarl.judges.prompts import read_view
from arenarl.llm.prompts import Message
from arenarl.synthesis.prompts import DIMENSIONS, read_sections
from arenarl.synthesis.query_pool import QueryPool
from arenarl.system.atomic_files import json_hash
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, ToolCall, Trajectory, Turn, language_of, text_of
from arenarl.trajectory.messages import assistant_text, messages_of, native_calls, parse_turn, read_turns, reply_message

Sections = dict[str, list[str]]
Fault = tuple[int, str]  # (turn, from 1; description)
Solve = Callable[[Query, random.Random, float], Trajectory]
Call = tuple[str, str]  # (name, arguments as JSON)
REFUSAL = {"en": "I'm sorry, but I can't help with that.", "zh": "抱歉，我无法处理这个请求。"}
_CONVERSATIONS = 100_000  # most conversations with a stored plan


@dataclass(frozen=True)
class SimulatedRoles:
    """Generators, refiner, extractor and inspector."""

    pool: QueryPool
    examine: Examiner
    seed: int
    mistakes: float  # share of bad queries; a quarter of it is the share of refused calls and of wrong other replies
    inspector_error: float  # share of an inspection's verdicts that are reversed

    def reply(self, role: str, model: str, messages: Sequence[Message], repeat: int) -> Reply:
        """Return the role's reply. Raises ValueError or LookupError for a prompt of another role."""
        replies = {"generator": self._generate, "refiner": self._refine}
        replies |= {"extractor": self._extract, "inspector": self._inspect}
        # a repeated request draws a new reply only from a generator; the other roles repeat theirs
        seeds = (role, json_hash(list(messages[:2])))
        if role == "generator":
            seeds = (model, json_hash(list(messages)), repeat)
        return replies[role](read_sections(messages), random.Random(stable_seed(self.seed, *seeds)))

    def _generate(self, sections: Sections, rng: random.Random) -> Reply:
        examples = [json.loads(line) for line in sections["Examples"]]
        language = language_of(" ".join(examples) or " ".join(sections["Task"][:-2]))
        if rng.random() < self.mistakes / 4:
            return REFUSAL[language]
        known = self.pool.cell("\n".join(sections["Subtask"]), language)
        drawn = rng.sample(known, min(len(known), len(_form(sections)["queries"])))
        texts: list[str] = []
        for query in drawn:
            is_bad = rng.random() < self.mistakes
            texts.append(self.pool.bad_text(query, [*examples, *texts], rng) if is_bad else query.query)
        return {"queries": texts}

    def _refine(self, sections: Sections, rng: random.Random) -> Reply:
        text = "\n".join(sections["Query"])
        problem = self.pool.why_unservable(text)
        if rng.random() < self.mistakes / 4:
            problem = None if problem else "It is not clear what is wanted."
        return {"query": self.pool[text].query, "can_be_served": problem is None, "reason": problem or ""}

    def _extract(self, sections: Sections, rng: random.Random) -> Reply:
        query = self.pool["\n".join(sections["Query"])]
        values = {name: query.constraints.get(name) for name in _form(sections)}
        names = [name for name, value in values.items() if value is not None]
        if names and rng.random() < self.mistakes / 4:
            name = rng.choice(names)
            others = [other.constraints.get(name) for other in self.pool.cell(query.subtask, query.language)[:100]]
            values[name] = rng.choice([None, *(value for value in others if value != values[name])])
        return values

    def _inspect(self, sections: Sections, rng: random.Random) -> Reply:
        turns = read_view(sections["Trajectory"])
        faults = (_fault_of_calls(turns), *self._faults_of_answer("\n".join(sections["Query"]), turns))
        reply = {}
        for name, fault in zip(DIMENSIONS, faults, strict=True):
            if rng.random() < self.inspector_error:
                fault = None if fault else (len(turns), f"The {name} does not convince.")
            turn, problem = fault or (0, "")
            reply[name] = {"passes": fault is None, "turn": turn, "problem": problem}
        return reply

    def _faults_of_answer(self, text: str, turns: Sequence[Turn]) -> tuple[Fault | None, Fault | None]:
        """Return the faults of content and of consistency that a reader of the prompt can find."""
        query, last = self.pool[text], len(turns)
        if not turns or turns[-1].answer is None:
            return None, (last, "There is no answer.")
        if (truth := self.examine(query, Trajectory(query.query_id, messages_of(turns), "answer"))) is None:
            return None, None
        invented = truth.facts_stated - truth.facts_grounded
        content = f"{invented} of {truth.facts_stated} facts of the answer stand in no tool result."
        consistency = "The answer states nothing of what was asked for."
        return (last, content) if invented else None, None if truth.facts_stated else (last, consistency)


def _fault_of_calls(turns: Sequence[Turn]) -> Fault | None:
    """Return the first failed or repeated call."""
    earlier: set[str] = set()
    for number, turn in enumerate(turns, start=1):
        for index, call in enumerate(turn.tool_calls):
            if index < len(turn.observations) and turn.observations[index].startswith("Error"):
                return number, f"{call.name} was called wrongly: {turn.observations[index]}"
            if (key := json_hash([call.name, call.arguments])) in earlier:
                return number, f"{call.name} is called again with the same arguments."
            earlier.add(key)
    return None


def _form(sections: Sections) -> dict[str, Any]:
    """Return the form of the reply from the prompt's last line."""
    return json.loads(sections["Task"][-1])


@dataclass(frozen=True)
class Plan:
    """The drawn course of an attempt."""

    seed: int
    skill: float
    repeats_a_call: bool = False
    refuses: bool = False


class SimulatedTeacher:
    """Teacher and rewriter, which play `solve`, the domain's scripted teacher.

    The teacher's skill is 1 - `mistakes`. It refuses with probability `mistakes` / 10 and repeats a call with
    probability `mistakes` / 2. The rewriter's skill is 0 with probability `mistakes` / 2, else 1.
    """

    def __init__(self, pool: QueryPool, solve: Solve, seed: int, mistakes: float):
        self.pool, self.solve, self.seed, self.mistakes = pool, solve, seed, mistakes
        self._plans: OrderedDict[str, list[Plan]] = OrderedDict()  # by hash of the conversation so far
        self._turns = lru_cache(maxsize=4096)(self._solve_turns)

    def reply(self, messages: Sequence[dict[str, Any]], is_rewriter: bool, repeat: int, seed: int | None = None) -> str:
        """Return the next turn. `repeat` numbers the requests with equal messages, `seed` is the request's seed."""
        prompt = next((text_of(message["content"]) for message in messages if message["role"] == "user"), "")
        if (query := self.pool.find(prompt)) is None:
            return REFUSAL[language_of(prompt)]
        messages = [{"seed": seed, "role": "seed"}, *messages]  # each seed has its own conversations
        plan = self._plan(messages, is_rewriter, repeat)
        text = REFUSAL[query.language] if plan.refuses else _next_turn(self._turns(query, plan), _calls_of(messages))
        plans = self._plans.setdefault(json_hash([*messages, {"role": "assistant", "content": text}]), [])
        if plan not in plans:
            plans.append(plan)
        if len(self._plans) > _CONVERSATIONS:
            self._plans.popitem(last=False)
        return text

    def _plan(self, messages: Sequence[dict[str, Any]], is_rewriter: bool, repeat: int) -> Plan:
        """Return the conversation's plan, or draw one. `repeat` chooses among plans with equal turns so far."""
        last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        if plans := self._plans.get(json_hash(messages[: last + 1])):
            return plans[min(repeat, len(plans) - 1)]
        rng, mistakes = random.Random(stable_seed(self.seed, is_rewriter, json_hash(messages), repeat)), self.mistakes
        if is_rewriter:
            return Plan(0, 0.0 if rng.random() < mistakes / 2 else 1.0)
        return Plan(rng.getrandbits(32), 1 - mistakes, rng.random() < mistakes / 2, rng.random() < mistakes / 10)

    def _solve_turns(self, query: Query, plan: Plan) -> list[tuple[Counter[Call], str]]:
        """Return (calls, text) of each turn."""
        messages = self.solve(query, random.Random(plan.seed), plan.skill).messages
        texts = [assistant_text(message) for message in messages if message["role"] == "assistant"]
        calls = [_count(turn.tool_calls) for turn in read_turns(messages)]
        turns = list(zip(calls, texts, strict=True))
        return [turns[0], *turns] if plan.repeats_a_call and calls[0] else turns


def _next_turn(turns: Sequence[tuple[Counter[Call], str]], earlier: Counter[Call]) -> str:
    """Return the first turn that has new calls or no calls; else the last turn."""
    for calls, text in turns:
        if not calls or calls - earlier:
            return text
        earlier = earlier - calls
    return turns[-1][1]


def _calls_of(messages: Sequence[dict[str, Any]]) -> Counter[Call]:
    """Count the calls of a conversation, native or written in the text."""
    replies = [message for message in messages if message["role"] == "assistant"]
    turns = [parse_turn(reply_message(reply, [call for _, call in native_calls(reply)])) for reply in replies]
    return _count([call for turn in turns for call in turn.tool_calls])


def _count(calls: Sequence[ToolCall]) -> Counter[Call]:
    return Counter((call.name, json.dumps(call.arguments, sort_keys=True)) for call in calls)
