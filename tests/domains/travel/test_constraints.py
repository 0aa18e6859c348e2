import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from arenarl.domains.travel.constraints import FORMS, CompareConstraints, DayConstraints, SearchConstraints
from arenarl.domains.travel.names import CATEGORIES, CITY_ROWS, PREFERENCES
from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.domains.travel.teacher import Teacher
from arenarl.domains.travel.truth import examine, has_truth
from arenarl.trajectory import Query

PLACES = ["Lotus Museum", "荷花博物馆", "lotus park", "Jade Temple", "Nowhere", " "]
JUNK = st.sampled_from(
    [None, "", "x", "Paris", "2026-13-40", "2026-05-01", "9:00", "19:00", -1, 0, 3, 2.5, 10**9, float("nan"), True, [],
     ["x"], {}]
)  # fmt: skip
CITIES = st.sampled_from([row[0] for row in CITY_ROWS] + ["北京", "上海市", "xi'an"])
KINDS = st.sampled_from([*CATEGORIES, *CATEGORIES.values(), "bar"])
FIELDS = {
    "city": CITIES,
    "from_city": CITIES,
    "to_city": CITIES,
    "near": st.sampled_from(PLACES),
    "category": KINDS,
    "evening": KINDS,
    "radius_m": st.integers(1, 10**6),
    "preference": st.sampled_from([*PREFERENCES, "亲子", "cheap", "romantic"]),
    "categories": st.lists(KINDS, max_size=5),
    "stops": st.lists(st.sampled_from(PLACES), max_size=5),
    "date": st.sampled_from(["2026-05-01", "2026-02-29", "2099-12-31"]),
    "priority": st.sampled_from(["cheap", "fast", "nice"]),
    "mode": st.sampled_from(["driving", "walking", "transit", "by boat"]),
}


@st.composite
def replies(draw):
    """(subtask, what an LLM might say of its fields): mostly sensible, at times anything."""
    subtask = draw(st.sampled_from(SUBTASKS))
    named = [name for name in FORMS[subtask].model_fields if draw(st.integers(0, 9))]
    return subtask, {name: draw(st.one_of(*[FIELDS.get(name, JUNK)] * 4, JUNK)) for name in named}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_drawn_constraints_have_the_form_of_their_subtask_and_keep_their_truth(world, language):
    for subtask in SUBTASKS:
        for query in make_queries(world, subtask, language, 30, "forms", set()):
            said = FORMS[subtask].model_validate(query.constraints).model_dump()
            drawn = {name: value for name, value in query.constraints.items() if name != "phrase"}
            assert {name: said[name] for name in drawn} == drawn and not any(said[name] for name in said.keys() - drawn)
            assert has_truth(world, Query("q", "travel", subtask, language, query.query, said))


@settings(max_examples=150, deadline=None)
@given(reply=replies())
def test_whatever_the_forms_let_pass_has_a_truth_or_none_and_breaks_nothing(world, compact, taught, reply):
    subtask, said = reply
    try:
        wanted = FORMS[subtask].model_validate(said).model_dump()
    except ValidationError:
        wanted = said  # of somebody's own file
    query = Query("q", "travel", subtask, "en", "?", wanted)
    if has_truth(world, query):
        for one in taught[:: len(taught) // 5]:
            assert 0 <= examine(world, query, one.trajectory.messages).constraints_met <= 1
        if wanted.keys() >= FORMS[subtask].model_fields.keys() and wanted.get("days", 1):
            Teacher(world, compact).solve(query, random.Random(0), 1.0)


def test_names_in_either_language_become_the_worlds():
    places = {"city": "北京市", "from_city": "xi'an", "categories": ["博物馆", "Park", "bar"]}
    day = DayConstraints(**places, preference="亲子", date="2026-05-01")
    assert (day.city, day.from_city, day.preference) == ("Beijing", "Xian", "family")
    assert day.categories == ["museum", "park", "bar"]


def test_values_out_of_their_form_are_refused():
    wrong = {"date": ["2026-02-30"], "arrive_by": ["9:00", "24:00"], "priority": ["cheapest"], "max_price_yuan": [-1]}
    for field, value in ((field, value) for field, values in wrong.items() for value in values):
        with pytest.raises(ValidationError):
            CompareConstraints(**{field: value})


def test_who_writes_by_the_schema_fills_every_field_and_adds_none():
    for form in {*FORMS.values()}:
        schema = form.model_json_schema()
        assert schema["required"] == list(form.model_fields) and schema["additionalProperties"] is False
        assert all(field["description"] and "default" not in field for field in schema["properties"].values())
    assert SearchConstraints.model_validate({"city": "Wuhan", "more": 1}).near is None
