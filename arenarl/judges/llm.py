"""The LLM judge: the judge protocol with a model behind an OpenAI-compatible API.

`prompts` builds the prompt, `llm/client.py` makes the call. A reply is unusable if a score is out of range, a dimension
is missing, or an agent is repeated or unknown. Scores come from the reply; totals are computed with the rubric's
weights.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, StrictBool, create_model

from arenarl.config.schema import JudgeConfig
from arenarl.domains.rubrics import Item, Rubric
from arenarl.judges.judge import Verdict, rubric_of
from arenarl.judges.prompts import Reply, judge_messages
from arenarl.judges.view import view_kind, view_of
from arenarl.llm.client import LLMClient
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import prompt_texts
from arenarl.trajectory import Query, Trajectory, read_turns


def _as_line(text: str) -> str:
    """Join the lines of a text, because a line without a quote mark is structure in a prompt."""
    if not (line := " ".join(text.split())):
        raise ValueError("is empty")
    return line


Sentence = Annotated[str, Field(max_length=500), AfterValidator(_as_line)]
Score = Annotated[float, Field(ge=0, le=10, strict=True, allow_inf_nan=False)]


class OneScore(JSONReply):  # no docstring: the schema would send it to the LLM
    score: Score


class ListedScore(JSONReply):
    agent: Annotated[int, Field(strict=True)]
    explanation: str
    score: Score


class NewRubrics(JSONReply):
    merits: Annotated[list[Sentence], Field(max_length=5)]
    faults: Annotated[list[Sentence], Field(max_length=5)]


def _reply_of(name: str, /, **fields: Any) -> type[BaseModel]:
    return create_model(name, __base__=JSONReply, **{field: (kind, ...) for field, kind in fields.items()})


@lru_cache
def scores_reply(
    agents: int, dimensions: tuple[str, ...], explain: bool = False, turns: tuple[int, ...] = ()
) -> type[BaseModel]:
    """Return the pydantic model of {"agent_1": {dimension: score, …}, …}; with `explain`, {"reason": …} comes first.
    With `turns`, the number of turns of each agent, each agent also has "pivotal_turns": [number, …]."""
    scores = dict.fromkeys(dimensions, Score)
    kinds = [_reply_of("Scores", **scores)] * agents
    for number, count in enumerate(turns):
        numbers = list[Annotated[int, Field(ge=1, le=count, strict=True)]]
        kinds[number] = _reply_of(f"Scores{number + 1}", **scores, pivotal_turns=numbers)
    reason = {"reason": str} if explain else {}
    return _reply_of("Verdict", **reason, **{f"agent_{number}": kind for number, kind in enumerate(kinds, start=1)})


@lru_cache
def winners_reply(agents: int, winners: int) -> type[BaseModel]:
    """Return the pydantic model of {"winners": [number, …]}: `winners` different numbers from 1 to `agents`."""

    def differ(numbers: list[int]) -> list[int]:
        if len(set(numbers)) < len(numbers):
            raise ValueError("a number stands twice")
        return numbers

    number = Annotated[int, Field(ge=1, le=agents, strict=True)]
    numbers = Annotated[list[number], Field(min_length=winners, max_length=winners), AfterValidator(differ)]
    return _reply_of("Winners", winners=numbers)


@lru_cache
def listwise_reply(agents: int) -> type[BaseModel]:
    """Return the pydantic model of {"scores": [{"agent": number, "explanation": …, "score": …}, …]}, in any order."""

    def each_once(scores: list[ListedScore]) -> list[ListedScore]:
        if sorted(item.agent for item in scores) != list(range(1, agents + 1)):
            raise ValueError(f"each agent from 1 to {agents} must stand there once")
        return scores

    listed = Annotated[list[ListedScore], Field(min_length=agents, max_length=agents), AfterValidator(each_once)]
    return _reply_of("Scores", scores=listed)


@lru_cache
def checklist_reply(items: tuple[str, ...]) -> type[BaseModel]:
    """Return the pydantic model of {"items": {item: true or false, …}}."""
    return _reply_of("Checklist", items=_reply_of("Items", **dict.fromkeys(items, StrictBool)))


def _form_of(fields: dict[str, str]) -> str:
    """Return a JSON object as a prompt shows its form."""
    return "{" + ", ".join(f'"{name}": {form}' for name, form in fields.items()) + "}"


class LLMJudge:
    """An LLM as a judge. `rubric` returns a query's rubric: the domain's, or a written one (`query_rubrics`)."""

    def __init__(self, config: JudgeConfig, client: LLMClient, rubric: Callable[[Query], Rubric] = rubric_of):
        self.config, self.client, self.rubric = config, client, rubric

    def weights(self, query: Query) -> dict[str, float]:
        return self._rubric(query).weights

    async def compare(self, query: Query, first: Trajectory, second: Trajectory, repeat: int = 0) -> Verdict | None:
        return await self._scores("compare", query, [first, second], repeat)

    async def score(
        self, query: Query, trajectory: Trajectory, answer_only: bool = False, repeat: int = 0
    ) -> Verdict | None:
        return await self._scores("score", query, [trajectory], repeat, answer_only)

    async def choose(
        self, query: Query, trajectories: Sequence[Trajectory], winners: int, repeat: int = 0
    ) -> list[int] | None:
        count = len(trajectories)
        form = '{"winners": [' + ", ".join(["<number>"] * winners) + "]}"
        reply = Reply("choose", form, {"count": count, "winners": winners})
        verdict = await self._ask(query, trajectories, reply, winners_reply(count, winners), repeat)
        return verdict and [number - 1 for number in verdict.winners]

    async def score_overall(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> float | None:
        verdict = await self._ask(query, [trajectory], Reply("overall", '{"score": <0-10>}'), OneScore, repeat)
        return verdict and verdict.score

    async def score_dimension(
        self, query: Query, trajectory: Trajectory, dimension: str, repeat: int = 0
    ) -> float | None:
        reply, rubric = Reply("dimension", '{"score": <0-10>}'), self._rubric(query).only(dimension)
        verdict = await self._ask(query, [trajectory], reply, OneScore, repeat, rubric)
        return verdict and verdict.score

    async def score_together(
        self, query: Query, trajectories: Sequence[Trajectory], repeat: int = 0
    ) -> list[float] | None:
        """Return the listwise scores, matched by the agents' numbers; the reply may have any order."""
        count = len(trajectories)
        item_form = '{"agent": <number>, "explanation": "<one sentence>", "score": <0-10>}'
        reply = Reply("listwise", '{"scores": [' + ", ".join([item_form] * count) + "]}", {"count": count})
        verdict = await self._ask(query, trajectories, reply, listwise_reply(count), repeat)
        return verdict and [item.score for item in sorted(verdict.scores, key=lambda item: item.agent)]

    def checklist(self, query: Query) -> dict[str, float]:
        return self.weights(query)

    async def check_items(
        self, query: Query, trajectory: Trajectory, repeat: int = 0, rubrics: Sequence[str] = ()
    ) -> dict[str, bool] | None:
        rubric = self._rubric_with(query, rubrics)
        form = _form_of({"items": _form_of(dict.fromkeys(rubric.names, "<true or false>"))})
        reply, names = Reply("checklist", form), [*self._rubric(query).names, *rubrics]
        verdict = await self._ask(query, [trajectory], reply, checklist_reply(rubric.names), repeat, rubric)
        return verdict and dict(zip(names, verdict.items.model_dump().values(), strict=True))

    async def propose_rubrics(
        self, query: Query, trajectories: Sequence[Trajectory], rubrics: Sequence[str], repeat: int = 0
    ) -> dict[str, float] | None:
        """Show the checklist and the present rubrics as the prompt's rubric. Leave out new sentences that repeat the
        name or text of its items, and sentences that the reply calls both a merit and a fault."""
        present = self._rubric_with(query, rubrics)
        reply = Reply("propose", '{"merits": ["<one sentence>"], "faults": ["<one sentence>"]}')
        verdict = await self._ask(query, trajectories, reply, NewRubrics, repeat, present)
        if verdict is None:
            return None
        lines = ((item.name, item.description, f"{item.name}: {item.description}") for item in present.items)
        dropped = {" ".join(text.split()) for texts in lines for text in texts}
        dropped |= {*verdict.merits}.intersection(verdict.faults)
        new = dict.fromkeys(verdict.merits, 1.0) | dict.fromkeys(verdict.faults, -1.0)
        return {text: weight for text, weight in new.items() if text not in dropped}

    async def _scores(
        self, task: str, query: Query, trajectories: Sequence[Trajectory], repeat: int, answer_only: bool = False
    ) -> Verdict | None:
        rubric, is_match = self._rubric(query, answer_only), task == "compare"
        names_turns = is_match and self.config.name_turns
        turns = tuple(len(read_turns(trajectory.messages)) for trajectory in trajectories) if names_turns else ()
        reply_type = scores_reply(len(trajectories), rubric.names, is_match and self.config.explain, turns)
        agent = dict.fromkeys(rubric.names, "<0-10>") | ({"pivotal_turns": "[<turn>]"} if names_turns else {})
        fields = dict.fromkeys(reply_type.model_fields, _form_of(agent))
        if "reason" in fields:
            fields["reason"] = '"<one sentence>"'
        reply = Reply(task, _form_of(fields), names_turns=names_turns)
        verdict = await self._ask(query, trajectories, reply, reply_type, repeat, rubric, answer_only)
        if verdict is None:
            return None
        scores = verdict.model_dump()
        reason = scores.pop("reason", "")
        pivotal = tuple(tuple(sorted(set(agent.pop("pivotal_turns")))) for agent in scores.values() if names_turns)
        return Verdict(tuple(scores.values()), rubric.total, reason, pivotal)

    def _rubric(self, query: Query, answer_only: bool = False) -> Rubric:
        """Return the query's rubric for the view of this call."""
        return self.rubric(query).for_view(view_kind(self.config, answer_only))

    def _rubric_with(self, query: Query, rubrics: Sequence[str]) -> Rubric:
        """Return the query's rubric with further rubrics in words as items, rubric_1, …"""
        rubric = self._rubric(query)
        items = [Item(f"rubric_{number}", "answer", 1.0, text) for number, text in enumerate(rubrics, start=1)]
        return Rubric((*rubric.items, *items), rubric.parts)

    async def _ask(
        self, query: Query, trajectories: Sequence[Trajectory], reply: Reply, reply_type: type, repeat: int,
        rubric: Rubric | None = None, answer_only: bool = False,
    ) -> Any:  # fmt: skip
        """Return the reply to one call as `reply_type`, or None if no reply is usable."""
        kind = view_kind(self.config, answer_only)
        views = [view_of(trajectory, kind) for trajectory in trajectories]
        messages = judge_messages(query, views, rubric or self._rubric(query), reply, self.config)
        again = prompt_texts("judge", query.language)["again"]
        return await self.client.ask(self.config, messages, reply_type, again, repeat, about=query.query_id)
