"""Stage `inspect`: rules, then an LLM along the paper's three dimensions; a rewriter corrects failures (Section 5,
stage III).

A rewriter keeps the turns before the first faulty one, and all tool calls are made again. The problems are added to its
system prompt and do not appear in the trajectory. A trajectory that still fails after `build.rounds` of rewriting is
dropped with its reasons; one without the inspector's verdict is dropped at once.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from arenarl.config.schema import LLMConfig
from arenarl.domains.domain import Domain
from arenarl.llm.client import LLMClient
from arenarl.rollout.api_policy import ApiProgress, ApiRolloutEngine
from arenarl.rollout.engine import Attempt
from arenarl.synthesis.prompts import DIMENSIONS, Inspection, again, inspect_messages, rewrite_system
from arenarl.synthesis.rules import Problem, problems_of
from arenarl.synthesis.trajectories import roll_out
from arenarl.system.progress import Bar
from arenarl.system.seeds import stable_seed
from arenarl.trajectory import Query, Trajectory

NO_VERDICT = "no_verdict"  # the inspector's call failed


@dataclass
class Inspected:
    """A query's current trajectory with the problems found in each round. It passes if the last round found none."""

    query: Query
    trajectory: Trajectory
    rounds: list[list[Problem]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return bool(self.rounds) and not self.rounds[-1]

    @property
    def can_be_rewritten(self) -> bool:
        return not self.passed and not any(problem.rule == NO_VERDICT for problem in self.rounds[-1])

    def to_record(self) -> dict[str, Any]:
        rounds = [[asdict(problem) for problem in problems] for problems in self.rounds]
        return self.trajectory.to_record() | {"query": asdict(self.query), "passed": self.passed, "rounds": rounds}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Inspected":
        rounds = [[Problem(**problem) for problem in problems] for problems in record["rounds"]]
        return cls(Query(**record["query"]), Trajectory.from_record(record), rounds)


@dataclass(frozen=True)
class Inspector:
    """Finds the problems of a trajectory by rules, and by an LLM unless its name is `embedded`."""

    llm: LLMConfig
    client: LLMClient
    domain: Domain
    tools: Mapping[str, Sequence[dict[str, Any]]]  # by language

    async def problems(self, query: Query, trajectory: Trajectory) -> list[Problem]:
        """Return the rules' problems. Only if there are none, call the LLM and return its problems."""
        return self.by_rules(query, trajectory) or await self.by_llm(query, trajectory)

    def by_rules(self, query: Query, trajectory: Trajectory) -> list[Problem]:
        return problems_of(query, trajectory, self.tools[query.language], self.domain.contradictions(query, trajectory))

    async def by_llm(self, query: Query, trajectory: Trajectory) -> list[Problem]:
        if self.llm.name == "embedded":
            return []
        messages = inspect_messages(query, trajectory, self.tools[query.language])
        reply = await self.client.ask(self.llm, messages, Inspection, again(query.language), about=query.query_id)
        if reply is None:
            return [Problem(NO_VERDICT, 0, "the inspector gave no verdict")]
        findings = [(name, getattr(reply, name)) for name in DIMENSIONS]
        return [Problem(name, finding.turn, finding.problem) for name, finding in findings if not finding.passes]


@dataclass(frozen=True)
class Rewrite(Attempt):
    """An attempt that starts with turns of an earlier attempt."""

    kept: tuple[dict[str, Any], ...] = ()  # assistant messages of the kept turns
    problems: tuple[str, ...] = ()  # problems of the dropped turns


class RewritingEngine(ApiRolloutEngine):
    """Rolls out rewrites: a kept turn replaces the model's reply, and its calls are made again."""

    async def _take_turn(
        self, progress: ApiProgress, attempt: Rewrite, turn_number: int, budget: int, must_answer: bool
    ) -> bool:
        if turn_number < len(attempt.kept):
            self.repeat_turn(progress, attempt.kept[turn_number], turn_number)
            return True
        if turn_number == len(attempt.kept):
            system = rewrite_system(self.system or "", attempt.query.language, attempt.problems)
            rest = progress.sent[1:] if progress.sent[0]["role"] == "system" else progress.sent
            progress.sent[:] = [{"role": "system", "content": system}, *rest]
            progress.meta["rewritten_from"] = turn_number + 1
        return await super()._take_turn(progress, attempt, turn_number, budget, must_answer)


def kept_turns(trajectory: Trajectory, turn: int) -> tuple[dict[str, Any], ...]:
    """Return the assistant messages before turn `turn`, from 1; 0 and numbers beyond the end mean the last turn."""
    turns = [message for message in trajectory.messages if message["role"] == "assistant"]
    return tuple(turns[: (turn if 0 < turn <= len(turns) else len(turns)) - 1])


def inspect(
    cases: Sequence[Inspected],
    inspector: Inspector,
    engines: Mapping[str, RewritingEngine],
    rounds: int,
    temperature: float,
    seed: int,
) -> None:
    """Inspect all cases in place, and rewrite failing cases up to `rounds` times."""

    async def inspect_all(cases: Sequence[Inspected], bar: Bar) -> None:
        async def inspect_one(case: Inspected) -> None:
            case.rounds.append(await inspector.problems(case.query, case.trajectory))
            bar.update()

        await asyncio.gather(*map(inspect_one, cases))

    pending = list(cases)
    for number in range(rounds + 1):
        with Bar(f"inspection {number + 1}", len(pending)) as bar:
            asyncio.run(inspect_all(pending, bar))
        inspector.client.check()
        pending = [case for case in pending if case.can_be_rewritten]
        if number == rounds or not pending:
            return
        attempts = []
        for case in pending:
            attempt_seed = stable_seed(seed, "rewrite", case.query.query_id, number)
            kept = kept_turns(case.trajectory, first_faulty_turn(case.rounds[-1]))
            texts = tuple(problem.text for problem in case.rounds[-1])
            attempts.append(Rewrite(case.query, temperature, attempt_seed, kept=kept, problems=texts))
        for case, trajectory in zip(pending, roll_out(engines, attempts, f"rewriting {number + 1}"), strict=True):
            case.trajectory = trajectory


def first_faulty_turn(problems: Sequence[Problem]) -> int:
    """Return the first turn that a problem names, from 1; 0 if no problem names a turn."""
    return min((problem.turn for problem in problems if problem.turn), default=0)


def inspection_rows(cases: Sequence[Inspected]) -> list[dict[str, Any]]:
    """Return a row per round: the numbers inspected, with each kind of problem, passed, rewritten and dropped."""
    rows = []
    for number in range(max((len(case.rounds) for case in cases), default=0)):
        inspected = [case for case in cases if len(case.rounds) > number]
        problems = Counter(rule for case in inspected for rule in {problem.rule for problem in case.rounds[number]})
        passed = sum(not case.rounds[number] for case in inspected)
        rewritten = sum(len(case.rounds) > number + 1 for case in inspected)
        row = {"round": number, "inspected": len(inspected), **dict(sorted(problems.items()))}
        rows.append(row | {"passed": passed, "rewritten": rewritten, "dropped": len(inspected) - passed - rewritten})
    return rows
