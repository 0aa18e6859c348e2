"""Flights and trains that an LLM invents, as in the paper (Appendices C, E.4, E.5), instead of the embedded world's.

The reply store keeps them: the LLM is asked once for each leg and day. Use an LLM judge with this timetable, because
the embedded judge and the `true/` metrics check against the world's.
"""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from arenarl.config.schema import LLMConfig
from arenarl.domains.stated_facts import minutes_of
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
    """A timetable whose journeys an LLM invents."""

    def __init__(self, llm: LLMConfig, client: LLMClient, world: World, language: str):
        self.llm, self.client, self.world, self.language = llm, client, world, language

    async def journeys(self, kind: str, date: str, from_city: str, to_city: str) -> list[Journey] | None:
        """Return the journeys of kind "flight" or "train"; None if the LLM gave no valid reply.

        A city of the world is given by its key, any other city by its name.
        """
        texts = prompt_texts("tickets", self.language)
        names = [quotable(self.world.city_name(city, self.language)) for city in (from_city, to_city)]
        task = texts[kind].format(date=date, from_city=names[0], to_city=names[1])
        request = f"{task.strip()}\n{texts['reply_' + kind].strip()}"
        messages = [{"role": "system", "content": texts["system"].strip()}, {"role": "user", "content": request}]
        schema = Flights if kind == "flight" else Trains
        reply = await self.client.ask(self.llm, messages, schema, texts["again"], about=f"{kind} {date}")
        return reply and [self._journey(kind, ticket) for ticket in reply.journeys]

    def _journey(self, kind: str, ticket: _Journey) -> Journey:
        transfer = getattr(ticket, "transfer_city", None)
        if transfer and (city := self.world.find_city(transfer)):
            transfer = city.key
        minutes = minutes_of(ticket.arrival_time) - minutes_of(ticket.departure_time)
        times = (ticket.departure_time, ticket.arrival_time, minutes, ticket.price_yuan)
        # in the run's language only
        terminals = (ticket.departure_terminal,) * 2 + (ticket.arrival_terminal,) * 2
        return Journey(kind, ticket.number, *times, *terminals, transfer)
