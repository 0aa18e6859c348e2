"""The queries and their scripted teacher."""

import json
import random
import re
from dataclasses import replace

import pytest
from scripts import ROOT

from arenarl.config.load import load_config
from arenarl.domains.domain import even_counts
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.travel.names import EVENING
from arenarl.domains.travel.queries import HELD_OUT, SUBTASKS, make_queries
from arenarl.domains.travel.teacher import HABITS, Teacher
from arenarl.domains.travel.truth import examine, has_truth
from arenarl.trajectory import Query


@pytest.mark.parametrize("subtask", SUBTASKS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_queries_never_repeat_and_their_texts_state_their_constraints(world, subtask, language):
    taken = set()
    first, more = (make_queries(world, subtask, language, 30, seed, taken) for seed in ("a", "a"))
    assert len({query.query for query in first + more}) == 60 == len(taken)
    for query in first:
        wanted = query.constraints
        for key in ("max_price_yuan", "budget_yuan", "max_minutes", "arrive_by", "open_at", "date"):
            if wanted.get(key) is not None:
                assert str(wanted[key]) in query.query
        cities = [world.cities[wanted[key]] for key in ("city", "from_city", "to_city") if wanted.get(key)]
        assert all((city.name_zh if language == "zh" else city.key) in query.query for city in cities)
        for name in [wanted["near"]] if "near" in wanted else wanted.get("stops", []):
            assert (world.find_poi(name).name_zh if language == "zh" else name) in query.query
        assert Query(**json.loads(json.dumps(query.__dict__))) == query


@pytest.mark.parametrize("subtask", SUBTASKS)
def test_more_skill_makes_better_trajectories_and_full_skill_meets_most_constraints(world, compact, subtask):
    teacher, total, sums = Teacher(world, compact), domain_rubric("travel", "en").total, []
    queries = make_queries(world, subtask, "en", 30, "skill", set())
    for skill in (0.0, 0.3, 0.6, 1.0):
        solved = [teacher.solve(query, random.Random(number), skill) for number, query in enumerate(queries)]
        truths = [examine(world, query, each.messages) for query, each in zip(queries, solved, strict=True)]
        sums.append(sum(total(truth.dimensions()) for truth in truths))
    assert sums == sorted(sums) and sums[0] < sums[-1]
    assert sum(truth.constraints_met for truth in truths) / len(queries) > 0.85


def test_the_skill_is_the_probability_of_each_habit(world, compact):
    (query,) = make_queries(world, "Search", "en", 1, "habits", set())
    teacher = Teacher(world, compact)
    for skill, expected in ((0.0, 0), (0.3, 0.3), (1.0, 1)):
        habits = [teacher.solve(query, random.Random(seed), skill).meta["habits"] for seed in range(300)]
        assert all(set(attempt) == set(HABITS) for attempt in habits)
        for habit in HABITS:
            assert sum(attempt[habit] for attempt in habits) / 300 == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(("subtask", "skill", "changes"), [
    ("Search", 1.0, {"radius_m": 10}),
    ("1-Day", 0.0, {"categories": ["museum"], "evening": None, "from_city": None}),
])  # fmt: skip
def test_a_query_of_your_own_that_no_place_meets_is_answered_too(world, compact, subtask, skill, changes):
    """judge_check also solves such queries, written by you or by an LLM; drawn queries always have a place."""
    (query,) = make_queries(world, subtask, "en", 1, "own", set())
    query = replace(query, constraints=query.constraints | changes)
    solved = Teacher(world, compact).solve(query, random.Random(1), skill)
    assert has_truth(world, query) and solved.valid and "found" in solved.answer


README = " ".join((ROOT / "data" / "README.md").read_text(encoding="utf-8").split())
(STATED,) = re.findall(r"(\d+) of (\d+) evening stops \((\d+) %\) have none, .*? (\d+) of (\d+) \((\d+) %\)", README)


@pytest.mark.parametrize(("config", "stated"), [
    ("configs/travel/sft_qwen3_8b.yaml", STATED[:3]), ("configs/quickstart.yaml", STATED[3:]),
])  # fmt: skip
def test_the_readme_states_how_many_evening_stops_have_no_place_that_is_open(world, config, stated):
    data, taken, fitting = load_config(ROOT / config).data, set(), []
    taught = [subtask for subtask in SUBTASKS if subtask != HELD_OUT]
    sizes = {"test": len(SUBTASKS) * data.test_per_subtask, "rl": data.rl_size, "sft": data.sft_size}
    for split, size in sizes.items():  # as in `TravelDomain.splits`
        for subtask, count in even_counts(size, taught if split == "sft" else SUBTASKS):
            queries = make_queries(world, subtask, data.language, count, f"travel{data.seed}-{split}", taken)
            wishes = [query.constraints for query in queries if subtask == "1-Day" and query.constraints["evening"]]
            places = [(world.pois_in(wish["city"], wish["evening"]), wish["preference"]) for wish in wishes]
            fitting += [any(wish in poi.tags and poi.closes > EVENING for poi in pois) for pois, wish in places]
    missing = fitting.count(False)
    assert tuple(map(int, stated)) == (missing, len(fitting), round(100 * missing / len(fitting)))
