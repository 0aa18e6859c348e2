"""Flights and trains invented by an LLM, as in the paper (Appendices C, E.4, E.5), instead of by the embedded world.

The reply store makes them a timetable: the same leg of the same day is asked for once. The embedded judge and the
`true/` metrics know the world's timetable only, so runs with this one are for LLM judges.
"""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from arenarl.config.schema import LLMConfig
from arenarl.domains.travel.world import Journey, World
from arenarl.llm.client import LLMClient
from arenarl.llm.json_reply import JSONReply
from arenarl.llm.prompts import prompt_texts, quotable

Clock = Annotated[str, StringConstraints(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
Terminal = Annotated[
    str, StringConstraints(min_length=2, max_length=60), AfterValidator(lambda text: quotable(" ".join(text.split())))
]
Yuan = Annotated[int, Field(ge=1, le=20_000)]


class _Journey(JSONReply):
    departure_terminal: Terminal
    arrival_terminal: Terminal
    departure_time: Clock
    arrival_time: Clock
    price_yuan: Yuan


class Flight(_Journey):
    number: Annotated[str, StringConstraints(pattern=r"^[A-Z0-9]{2}\d{3,4}$")]


class Train(_Journey):
    number: Annotated[str, StringConstraints(pattern=r"^[GDCZTK]\d{1,4}$")]
    transfer_city: Terminal | None = Field(...)


def _same_day(journeys: list[_Journey]) -> list[_Journey]:
    if late := [journey.number for journey in journeys if journey.arrival_time <= journey.departure_time]:
        raise ValueError(f"{late[0]} does not arrive after its departure on the same day")
    return journeys


class Flights(JSONReply):
    journeys: Annotated[list[Flight], Field(min_length=2, max_length=8), AfterValidator(_same_day)]


class Trains(JSONReply):
    journeys: Annotated[list[Train], Field(min_length=2, max_length=8), AfterValidator(_same_day)]


class LLMTimetable:
    """`await timetable.journeys(kind, date, from_city, to_city)`, with the keys of the world's cities,
    or the names of others."""

    def __init__(self, llm: LLMConfig, client: LLMClient, world: World, language: str):
        self.llm, self.client, self.world, self.language = llm, client, world, language

    async def journeys(self, kind: str, date: str, from_city: str, to_city: str) -> list[Journey] | None:
        """None if no reply could be had."""
        texts = prompt_texts("tickets", self.language)
        names = [quotable(self.world.city_name(city, self.language)) for city in (from_city, to_city)]
        task = texts[kind].format(date=date, from_city=names[0], to_city=names[1])
        asked = f"{task.strip()}\n{texts['reply_' + kind].strip()}"
        messages = [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": asked}]
        reply = await self.client.ask(
            self.llm, messages, Flights if kind == "flight" else Trains, texts["again"], about=f"{kind} {date}"
        )
        return reply and [self._journey(kind, date, from_city, to_city, one) for one in reply.journeys]

    def _journey(self, kind: str, date: str, from_city: str, to_city: str, one: _Journey) -> Journey:
        named = getattr(one, "transfer_city", None)
        change = self.world.find_city(named) if named else None
        minutes = _minutes(one.arrival_time) - _minutes(one.departure_time)
        terminals = (one.departure_terminal,) * 2 + (one.arrival_terminal,) * 2  # in the one language of the run
        times = (one.departure_time, one.arrival_time, minutes, one.price_yuan)
        return Journey(kind, one.number, date, from_city, to_city, *times, *terminals, change.key if change else named)


def _minutes(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])
