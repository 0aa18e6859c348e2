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
NAMES, DATES = st.sampled_from(PLACES), st.sampled_from(["2026-05-01", "2026-02-29", "2099-12-31"])
FIELDS = dict.fromkeys(("city", "from_city", "to_city"), CITIES) | dict.fromkeys(("category", "evening"), KINDS)
FIELDS |= {"categories": st.lists(KINDS, max_size=5), "stops": st.lists(NAMES, max_size=5), "near": NAMES}
FIELDS |= {"date": DATES, "radius_m": st.integers(1, 10**6), "priority": st.sampled_from(["cheap", "fast", "nice"])}
FIELDS |= {"preference": st.sampled_from([*PREFERENCES, "亲子", "cheap", "romantic"])}
FIELDS |= {"mode": st.sampled_from(["driving", "walking", "transit", "by boat"])}


@st.composite
def replies(draw):
    """Draw (subtask, an LLM's values of its fields); one value in five is junk."""
    subtask = draw(st.sampled_from(SUBTASKS))
    names = [name for name in FORMS[subtask].model_fields if draw(st.integers(0, 9))]
    return subtask, {name: draw(st.one_of(*[FIELDS.get(name, JUNK)] * 4, JUNK)) for name in names}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_generated_constraints_fit_the_schema_of_their_subtask_and_have_a_truth(world, language):
    for subtask in SUBTASKS:
        for query in make_queries(world, subtask, language, 30, "forms", set()):
            parsed = FORMS[subtask].model_validate(query.constraints).model_dump()
            drawn = {name: value for name, value in query.constraints.items() if name != "phrase"}
            assert {name: parsed[name] for name in drawn} == drawn
            assert not any(parsed[name] for name in parsed.keys() - drawn)
            assert has_truth(world, Query("q", "travel", subtask, language, query.query, parsed))


@settings(max_examples=150)
@given(reply=replies())
def test_constraints_with_a_truth_never_crash_the_examiner_or_the_teacher(world, compact, taught, reply):
    subtask, values = reply
    try:
        wanted = FORMS[subtask].model_validate(values).model_dump()
    except ValidationError:
        wanted = values  # as from a user's file
    query = Query("q", "travel", subtask, "en", "?", wanted)
    if has_truth(world, query):
        for pair in taught[:: len(taught) // 5]:
            assert 0 <= examine(world, query, pair.trajectory.messages).constraints_met <= 1
        if wanted.keys() >= FORMS[subtask].model_fields.keys() and wanted.get("days", 1):
            Teacher(world, compact).solve(query, random.Random(0), 1.0)


def test_names_in_either_language_are_translated_into_the_worlds_and_invalid_values_refused():
    places = {"city": "北京市", "from_city": "xi'an", "categories": ["博物馆", "Park", "bar"]}
    day = DayConstraints(**places, preference="亲子", date="2026-05-01")
    assert (day.city, day.from_city, day.preference) == ("Beijing", "Xian", "family")
    assert day.categories == ["museum", "park", "bar"]
    for field, values in {
        "date": ["2026-02-30"], "arrive_by": ["9:00", "24:00"], "priority": ["nice"], "max_price_yuan": [-1]
    }.items():  # fmt: skip
        for value in values:
            with pytest.raises(ValidationError):
                CompareConstraints(**{field: value})


def test_the_schema_requires_every_field_and_allows_no_other():
    for form in {*FORMS.values()}:
        schema = form.model_json_schema()
        assert schema["required"] == list(form.model_fields) and schema["additionalProperties"] is False
        assert all(field["description"] and "default" not in field for field in schema["properties"].values())
    assert SearchConstraints.model_validate({"city": "Wuhan", "more": 1}).near is None
