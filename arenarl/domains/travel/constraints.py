"""The schemas of a travel query's constraints, by which an LLM extracts them from a text.

They have the fields that `queries` draws and `truth` reads. A field without a value in the text is null. Cities, kinds
of place and wishes are translated into the world's words. A word that the world lacks stays as it is, and the query
then has no truth.
"""

import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from arenarl.domains.travel.names import CATEGORIES, CITY_ROWS, PREFERENCES, TAGS
from arenarl.llm.json_reply import JSONReply

_CITIES = {name.lower(): row[0] for row in CITY_ROWS for name in (row[0], row[1], row[2], row[2] + "市")}
_KINDS = {zh: en for en, zh in CATEGORIES.items()}
_WISHES = {TAGS[wish]: wish for wish in PREFERENCES}


def _translator(names: dict[str, str]) -> AfterValidator:
    return AfterValidator(lambda text: names.get(text.lower(), text))


_Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
_City = Annotated[_Name, _translator(_CITIES)]
_Kind = Annotated[_Name, _translator(_KINDS | {kind: kind for kind in CATEGORIES})]
_Wish = Annotated[_Name, _translator(_WISHES | {wish: wish for wish in PREFERENCES})]
_Clock = Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
_DAY = AfterValidator(lambda text: datetime.date.fromisoformat(text).isoformat())
_Date = Annotated[str, StringConstraints(pattern=r"^20[0-9]{2}-[0-9]{2}-[0-9]{2}$"), _DAY]
_Amount = Annotated[int | float, Field(ge=0, le=10_000_000)]

_CITY = "the city, by its English name without apostrophes, such as Beijing or Xian"
_OTHERS = "in the query's words if it is none of these"
_KIND = f"one of {', '.join(CATEGORIES)}; {_OTHERS}"
_WISH = f"what the user cares for: one of {', '.join(PREFERENCES)}; {_OTHERS}; null if none is said"
_CAR, _TRANSIT = "driving (by car, taxi, with heavy luggage)", "transit (bus, metro, also without a car)"
_MODE = f"{_CAR}, walking (also a stroll), {_TRANSIT}; null if not said"
_VISITS = f"the kinds of place to visit, in its order; each {_KIND}"
_COST = "what counts most, a low price or a short time; null if not said"
_STOPS = "all places of the way by their names as in the query, in its order: start, the ones between, end"


def _require_all(schema: dict[str, Any]) -> None:
    """Make every field required in the schema, so that an LLM writes null; parsing still accepts missing fields."""
    schema |= {"additionalProperties": False, "required": list(schema["properties"])}
    for field in schema["properties"].values():
        field.pop("default", None)


class TravelConstraints(JSONReply):
    model_config = ConfigDict(json_schema_extra=_require_all, allow_inf_nan=False)
    needed: ClassVar[frozenset[str]]  # fields without which a query has no truth


class SearchConstraints(TravelConstraints):
    """A search for one place near another."""

    needed = frozenset({"city", "near", "category", "radius_m", "preference"})
    city: _City | None = Field(None, description=_CITY)
    near: _Name | None = Field(None, description="the place to search around, by its name as in the query")
    category: _Kind | None = Field(None, description=f"the kind of place that is searched for: {_KIND}")
    radius_m: _Amount | None = Field(None, description="how far from `near` it may be, in metres: 3000 for 3 km")
    preference: _Wish | None = Field(None, description=_WISH)
    max_price_yuan: _Amount | None = Field(None, description="the most that it may cost a person, in yuan")
    open_at: _Clock | None = Field(None, description="the clock time at which it must be open, as HH:MM: 19:00")


class DayConstraints(TravelConstraints):
    """A plan for one or several days in one city."""

    needed = frozenset({"city", "categories", "preference"})
    city: _City | None = Field(None, description=_CITY)
    categories: Annotated[list[_Kind], Field(max_length=50)] = Field([], description=_VISITS)
    preference: _Wish | None = Field(None, description=_WISH)
    days: Annotated[int, Field(gt=0, le=1000)] | None = Field(None, description="how many days the plan is for")
    budget_yuan: _Amount | None = Field(None, description="the most that all its places may cost a person, in yuan")
    evening: _Kind | None = Field(None, description="which of `categories` is to be visited in the evening")
    from_city: _City | None = Field(None, description=f"where the user travels from to get there: {_CITY}")
    date: _Date | None = Field(None, description="the day of that journey, as YYYY-MM-DD")


class CompareConstraints(TravelConstraints):
    """A comparison of flights and trains between two cities."""

    needed = frozenset({"date", "from_city", "to_city", "priority"})
    from_city: _City | None = Field(None, description=f"where the journey begins: {_CITY}")
    to_city: _City | None = Field(None, description=f"where it ends: {_CITY}")
    date: _Date | None = Field(None, description="its day, as YYYY-MM-DD")
    priority: Literal["cheap", "fast"] | None = Field(None, description=_COST)
    max_price_yuan: _Amount | None = Field(None, description="the most that it may cost, in yuan")
    arrive_by: _Clock | None = Field(None, description="the clock time by which to arrive, as HH:MM: 18:00")


class DirectionConstraints(TravelConstraints):
    """A route through several places in a given order."""

    needed = frozenset({"stops", "mode"})
    city: _City | None = Field(None, description=_CITY)
    stops: Annotated[list[_Name], Field(max_length=50)] = Field([], description=_STOPS)
    mode: Literal["driving", "walking", "transit"] | None = Field(None, description=_MODE)
    max_minutes: _Amount | None = Field(None, description="how many minutes the way may take at most")


FORMS: dict[str, type[TravelConstraints]] = {
    "Search": SearchConstraints,
    "1-Day": DayConstraints,
    "M-Day": DayConstraints,
    "Compare": CompareConstraints,
    "Direction": DirectionConstraints,
}
