"""The LLM judge: what `judge` promises, asked of a model behind an OpenAI-compatible API.

Prompt and structure come from `prompts`, the call from `llm/client.py`. A score out of range, a missing dimension, an
agent that is listed twice or was not shown makes a reply unusable. Scores are read from the reply, totals are computed
from the rubric's weights.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, StrictBool, create_model

from arenarl.config.schema import JudgeConfig
from arenarl.domains.rubrics import Rubric
from arenarl.judges.judge import Verdict, rubric_of
from arenarl.judges.prompts import Reply, judge_messages
from arenarl.judges.view import view_kind, view_of
from arenarl.llm.client import LLMClient
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import prompt_texts
from arenarl.trajectory import Query, Trajectory

Score = Annotated[float, Field(ge=0, le=10, strict=True, allow_inf_nan=False)]


class OneScore(JSONReply):  # without a docstring, which the schema would send to the LLM
    score: Score


class ListedScore(JSONReply):
    agent: Annotated[int, Field(strict=True)]
    explanation: str
    score: Score


def _reply_of(name: str, /, **fields: Any) -> type[BaseModel]:
    return create_model(name, __base__=JSONReply, **{field: (kind, ...) for field, kind in fields.items()})


@lru_cache
def scores_reply(agents: int, dimensions: tuple[str, ...]) -> type[BaseModel]:
    """{"agent_1": {dimension: score, …}, …}"""
    scores = _reply_of("Scores", **dict.fromkeys(dimensions, Score))
    return _reply_of("Verdict", **{f"agent_{number + 1}": scores for number in range(agents)})


@lru_cache
def winners_reply(agents: int, winners: int) -> type[BaseModel]:
    """{"winners": [their numbers, from 1]}, as many as wanted and none twice."""

    def differ(numbers: list[int]) -> list[int]:
        if len(set(numbers)) < len(numbers):
            raise ValueError("a number stands twice")
        return numbers

    number = Annotated[int, Field(ge=1, le=agents, strict=True)]
    numbers = Annotated[list[number], Field(min_length=winners, max_length=winners), AfterValidator(differ)]
    return _reply_of("Winners", winners=numbers)


@lru_cache
def listwise_reply(agents: int) -> type[BaseModel]:
    """{"scores": [{"agent": its number, from 1, "explanation": …, "score": …}, …]}, every agent once, in any order."""

    def each_once(scores: list[ListedScore]) -> list[ListedScore]:
        if sorted(one.agent for one in scores) != list(range(1, agents + 1)):
            raise ValueError(f"each agent from 1 to {agents} must stand there once")
        return scores

    listed = Annotated[list[ListedScore], Field(min_length=agents, max_length=agents), AfterValidator(each_once)]
    return _reply_of("Scores", scores=listed)


@lru_cache
def checklist_reply(items: tuple[str, ...]) -> type[BaseModel]:
    """{"items": {item: whether it is met, …}}"""
    return _reply_of("Checklist", items=_reply_of("Items", **dict.fromkeys(items, StrictBool)))


class LLMJudge:
    """A judge behind an API.

    Args:
        rubric: a query's; the domain's, or one written for it (Tournament-GRPO, Appendix A).
    """

    def __init__(self, config: JudgeConfig, client: LLMClient, rubric: Callable[[Query], Rubric] = rubric_of):
        self.config = config
        self.client = client
        self.rubric = rubric

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
        said = await self._ask(query, trajectories, reply, winners_reply(count, winners), repeat)
        return said and [number - 1 for number in said.winners]

    async def score_overall(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> float | None:
        said = await self._ask(query, [trajectory], Reply("overall", '{"score": <0-10>}'), OneScore, repeat)
        return said and said.score

    async def score_dimension(
        self, query: Query, trajectory: Trajectory, dimension: str, repeat: int = 0
    ) -> float | None:
        reply, rubric = Reply("dimension", '{"score": <0-10>}'), self._rubric(query).only(dimension)
        said = await self._ask(query, [trajectory], reply, OneScore, repeat, rubric)
        return said and said.score

    async def score_together(
        self, query: Query, trajectories: Sequence[Trajectory], repeat: int = 0
    ) -> list[float] | None:
        """Matched by the agents' numbers: a reply may list them in any order."""
        count = len(trajectories)
        one_form = '{"agent": <number>, "explanation": "<one sentence>", "score": <0-10>}'
        reply = Reply("listwise", '{"scores": [' + ", ".join([one_form] * count) + "]}", {"count": count})
        said = await self._ask(query, trajectories, reply, listwise_reply(count), repeat)
        return said and [one.score for one in sorted(said.scores, key=lambda one: one.agent)]

    def checklist(self, query: Query) -> dict[str, float]:
        return self.weights(query)

    async def check_items(self, query: Query, trajectory: Trajectory, repeat: int = 0) -> dict[str, bool] | None:
        names = self._rubric(query).names
        form = '{"items": {' + ", ".join(f'"{name}": <true or false>' for name in names) + "}}"
        said = await self._ask(query, [trajectory], Reply("checklist", form), checklist_reply(names), repeat)
        return said and said.items.model_dump()

    async def _scores(
        self, task: str, query: Query, trajectories: Sequence[Trajectory], repeat: int, answer_only: bool = False
    ) -> Verdict | None:
        rubric = self._rubric(query, answer_only)
        reply_type = scores_reply(len(trajectories), rubric.names)
        one_form = "{" + ", ".join(f'"{name}": <0-10>' for name in rubric.names) + "}"
        reply = Reply(task, "{" + ", ".join(f'"{agent}": {one_form}' for agent in reply_type.model_fields) + "}")
        said = await self._ask(query, trajectories, reply, reply_type, repeat, rubric, answer_only)
        return said and Verdict(tuple(said.model_dump().values()), rubric.total)

    def _rubric(self, query: Query, answer_only: bool = False) -> Rubric:
        """The query's rubric for the view that the call shows."""
        return self.rubric(query).for_view(view_kind(self.config, answer_only))

    async def _ask(
        self, query: Query, trajectories: Sequence[Trajectory], reply: Reply, reply_type: type, repeat: int,
        rubric: Rubric | None = None, answer_only: bool = False,
    ) -> Any:  # fmt: skip
        """The reply to one call, as `reply_type`; None if there is none that can be used."""
        kind = view_kind(self.config, answer_only)
        views = [view_of(trajectory, kind) for trajectory in trajectories]
        messages = judge_messages(query, views, rubric or self._rubric(query), reply, self.config)
        again = prompt_texts("judge", query.language)["again"]
        return await self.client.ask(self.config, messages, reply_type, again, repeat, about=query.query_id)
