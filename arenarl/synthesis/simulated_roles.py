"""What the local server's generators, refiner, extractor and inspector reply to the prompts of `prompts`: right but for
a stated share of mistakes.

Generators, refiner and extractor know the world's queries. The inspector knows nothing but the prompt: of the domain's
truth it takes the one finding that a reader could make too, whether the facts of the answer stand in the tool results
that are shown.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from arenarl.judges.judge import Examiner
from arenarl.judges.prompts import read_shown
from arenarl.llm.prompts import Message
from arenarl.synthesis.prompts import DIMENSIONS, read_sections
from arenarl.synthesis.query_pool import QueryPool
from arenarl.synthesis.simulated_teacher import REFUSAL
from arenarl.system.database import json_hash
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Trajectory, Turn, language_of, messages_of

Sections = dict[str, list[str]]
Fault = tuple[int, str]  # the turn, from 1, and what is wrong with it


class SimulatedRoles:
    """Args:
    mistakes: the share of a generator's queries that are bad;
    a quarter of it is that of its refusals, and of the mistakes of refiner and
        extractor.
    inspector_error: the share of an inspection's verdicts that are turned round.
    """

    def __init__(self, pool: QueryPool, examine: Examiner, seed: int, mistakes: float, inspector_error: float):
        self.pool, self.examine, self.seed, self.mistakes, self.inspector_error = (
            pool,
            examine,
            seed,
            mistakes,
            inspector_error,
        )
        self._roles: dict[str, Callable[[Sections, random.Random], dict[str, Any] | str]] = {
            "generator": self._generate,
            "refiner": self._refine,
            "extractor": self._extract,
            "inspector": self._inspect,
        }

    def reply(self, role: str, model: str, messages: Sequence[Message], repeat: int) -> dict[str, Any] | str:
        """Raises ValueError and LookupError for what is no prompt of the role."""
        # only a generator has another try: who is asked again for the form of a reply thinks what it thought
        drawn_from = (
            (model, json_hash(list(messages)), repeat) if role == "generator" else (role, json_hash(list(messages[:2])))
        )
        return self._roles[role](read_sections(messages), random.Random(stable_seed(self.seed, *drawn_from)))

    def _generate(self, sections: Sections, rng: random.Random) -> dict[str, Any] | str:
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

    def _refine(self, sections: Sections, rng: random.Random) -> dict[str, Any]:
        text = "\n".join(sections["Query"])
        problem, is_wrong = self.pool.why_unservable(text), rng.random() < self.mistakes / 4
        if is_wrong:
            problem = None if problem else "It is not clear what is wanted."
        return {"query": self.pool[text].query, "can_be_served": problem is None, "reason": problem or ""}

    def _extract(self, sections: Sections, rng: random.Random) -> dict[str, Any]:
        query = self.pool["\n".join(sections["Query"])]
        read = {name: query.constraints.get(name) for name in _form(sections)}
        said = [name for name, value in read.items() if value is not None]
        if said and rng.random() < self.mistakes / 4:
            name = rng.choice(said)
            others = [other.constraints.get(name) for other in self.pool.cell(query.subtask, query.language)[:100]]
            read[name] = rng.choice([None, *(value for value in others if value != read[name])])
        return read

    def _inspect(self, sections: Sections, rng: random.Random) -> dict[str, Any]:
        turns = read_shown(sections["Trajectory"])
        content, consistency = self._of_answer("\n".join(sections["Query"]), turns)
        faults = dict(zip(DIMENSIONS, (_of_calls(turns), content, consistency), strict=True))
        for name, fault in faults.items():
            if rng.random() < self.inspector_error:
                faults[name] = None if fault else (len(turns), f"The {name} does not convince.")
        return {
            name: {"passes": fault is None, "turn": fault[0] if fault else 0, "problem": fault[1] if fault else ""}
            for name, fault in faults.items()
        }

    def _of_answer(self, text: str, turns: Sequence[Turn]) -> tuple[Fault | None, Fault | None]:
        """What is wrong with its content, and with its consistency, for a reader of this prompt."""
        query, last = self.pool[text], len(turns)
        if not turns or turns[-1].answer is None:
            return None, (last, "There is no answer.")
        if (truth := self.examine(query, Trajectory(query.query_id, messages_of(turns), "answer"))) is None:
            return None, None
        invented = truth.facts_stated - truth.facts_grounded
        nothing = (last, "The answer states nothing of what was asked for.") if not truth.facts_stated else None
        return (
            last,
            f"{invented} of {truth.facts_stated} facts of the answer stand in no tool result.",
        ) if invented else None, nothing


def _of_calls(turns: Sequence[Turn]) -> Fault | None:
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
