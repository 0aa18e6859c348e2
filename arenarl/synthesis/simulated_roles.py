"""What the local server's roles reply to the prompts of `prompts`: right but for a stated share of mistakes.

Generators, refiner and extractor know the world's queries. The inspector knows nothing but the prompt: of the domain's
truth it takes the one finding that a reader could make too, whether the facts of the answer stand in the tool results
that are shown. Teacher and rewriter are the domain's scripted teacher, a turn a request: what an attempt will be is
drawn when its conversation begins, and remembered for its next turns. Each reply is the attempt's first turn whose
calls the conversation lacks, so that it goes on from what somebody else began, too.
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
from arenarl.system.database import json_hash
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import (
    Query,
    ToolCall,
    Trajectory,
    Turn,
    assistant_text,
    language_of,
    messages_of,
    native_calls,
    parse_turn,
    read_turns,
    reply_message,
    text_of,
)  # fmt: skip

Sections = dict[str, list[str]]
Fault = tuple[int, str]  # the turn, from 1, and what is wrong with it
Solve = Callable[[Query, random.Random, float], Trajectory]
Call = tuple[str, str]  # its name, its arguments as JSON
REFUSAL = {"en": "I'm sorry, but I can't help with that.", "zh": "抱歉，我无法处理这个请求。"}
_CONVERSATIONS = 100_000  # that are remembered


@dataclass(frozen=True)
class SimulatedRoles:
    """Generators, refiner, extractor and inspector.

    Args:
        mistakes: the share of a generator's queries that are bad; a quarter of it is that of its refusals, and of the
            mistakes of refiner and extractor.
        inspector_error: the share of an inspection's verdicts that are turned round.
    """

    pool: QueryPool
    examine: Examiner
    seed: int
    mistakes: float
    inspector_error: float

    def reply(self, role: str, model: str, messages: Sequence[Message], repeat: int) -> Reply:
        """Raises ValueError and LookupError for what is no prompt of the role."""
        # only a generator has another try: who is asked again for the form of a reply thinks what it thought
        is_drawn = role == "generator"
        drawn_from = (model, json_hash(list(messages)), repeat) if is_drawn else (role, json_hash(list(messages[:2])))
        reply = {"generator": self._generate, "refiner": self._refine,
                 "extractor": self._extract, "inspector": self._inspect}[role]  # fmt: skip
        return reply(read_sections(messages), random.Random(stable_seed(self.seed, *drawn_from)))

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
            texts.append(self.pool.spoilt(query, [*examples, *texts], rng) if is_bad else query.query)
        return {"queries": texts}

    def _refine(self, sections: Sections, rng: random.Random) -> Reply:
        text = "\n".join(sections["Query"])
        problem, is_wrong = self.pool.why_unservable(text), rng.random() < self.mistakes / 4
        if is_wrong:
            problem = None if problem else "It is not clear what is wanted."
        return {"query": self.pool[text].query, "can_be_served": problem is None, "reason": problem or ""}

    def _extract(self, sections: Sections, rng: random.Random) -> Reply:
        query = self.pool["\n".join(sections["Query"])]
        read = {name: query.constraints.get(name) for name in _form(sections)}
        stated = [name for name, value in read.items() if value is not None]
        if stated and rng.random() < self.mistakes / 4:
            name = rng.choice(stated)
            others = [other.constraints.get(name) for other in self.pool.cell(query.subtask, query.language)[:100]]
            read[name] = rng.choice([None, *(value for value in others if value != read[name])])
        return read

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
        """What is wrong with its content, and with its consistency, for a reader of this prompt."""
        query, last = self.pool[text], len(turns)
        if not turns or turns[-1].answer is None:
            return None, (last, "There is no answer.")
        if (truth := self.examine(query, Trajectory(query.query_id, messages_of(turns), "answer"))) is None:
            return None, None
        invented = truth.facts_stated - truth.facts_grounded
        unborne = f"{invented} of {truth.facts_stated} facts of the answer stand in no tool result."
        nothing = "The answer states nothing of what was asked for."
        return (last, unborne) if invented else None, None if truth.facts_stated else (last, nothing)


def _fault_of_calls(turns: Sequence[Turn]) -> Fault | None:
    """The first call that failed, or that was made before."""
    made: set[str] = set()
    for number, turn in enumerate(turns, start=1):
        for index, call in enumerate(turn.tool_calls):
            if index < len(turn.observations) and turn.observations[index].startswith("Error"):
                return number, f"{call.name} was called wrongly: {turn.observations[index]}"
            if (key := json_hash([call.name, call.arguments])) in made:
                return number, f"{call.name} is called again with the same arguments."
            made.add(key)
    return None


def _form(sections: Sections) -> dict[str, Any]:
    """The form of the reply, the prompt's last line."""
    return json.loads(sections["Task"][-1])


@dataclass(frozen=True)
class Plan:
    """What an attempt will be."""

    seed: int
    skill: float
    repeats_a_call: bool = False
    refuses: bool = False


class SimulatedTeacher:
    """Teacher and rewriter.

    Args:
        solve: the domain's.
        mistakes: the chance that each good habit is off. A tenth of it is that of a refusal, a half that of a call made
            twice, and a half that the rewriter has no good habit.
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
        begun = self._begun.setdefault(json_hash([*messages, {"role": "assistant", "content": text}]), [])
        if plan not in begun:
            begun.append(plan)
        if len(self._begun) > _CONVERSATIONS:
            self._begun.popitem(last=False)
        return text

    def _plan(self, messages: Sequence[dict[str, Any]], is_rewriter: bool, repeat: int) -> Plan:
        """That of the conversation, or a new one. Of several that were the same so far, each goes on once."""
        last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        if begun := self._begun.get(json_hash(messages[: last + 1])):
            return begun[min(repeat, len(begun) - 1)]
        rng, mistakes = random.Random(stable_seed(self.seed, is_rewriter, json_hash(messages), repeat)), self.mistakes
        if is_rewriter:
            return Plan(0, 0.0 if rng.random() < mistakes / 2 else 1.0)
        return Plan(rng.getrandbits(32), 1 - mistakes, rng.random() < mistakes / 2, rng.random() < mistakes / 10)

    def _solved(self, query: Query, plan: Plan) -> list[tuple[Counter[Call], str]]:
        """Each turn's calls and its text."""
        messages = self.solve(query, random.Random(plan.seed), plan.skill).messages
        texts = [assistant_text(message) for message in messages if message["role"] == "assistant"]
        calls = [_counted(turn.tool_calls) for turn in read_turns(messages)]
        turns = list(zip(calls, texts, strict=True))
        return [turns[0], *turns] if plan.repeats_a_call and calls[0] else turns


def _next_turn(turns: Sequence[tuple[Counter[Call], str]], made: Counter[Call]) -> str:
    """The first turn whose calls were not all made, or the last, which makes none."""
    for calls, text in turns:
        if not calls or calls - made:
            return text
        made = made - calls
    return turns[-1][1]


def _calls_of(messages: Sequence[dict[str, Any]]) -> Counter[Call]:
    """All calls of a conversation in an API's form."""
    replies = [message for message in messages if message["role"] == "assistant"]
    turns = [parse_turn(reply_message(reply, [call for _, call in native_calls(reply)])) for reply in replies]
    return _counted([call for turn in turns for call in turn.tool_calls])


def _counted(calls: Sequence[ToolCall]) -> Counter[Call]:
    return Counter((call.name, json.dumps(call.arguments, sort_keys=True)) for call in calls)
