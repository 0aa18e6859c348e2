import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hash_seeds import printed_in_two_processes

from arenarl.config.schema import DataConfig
from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.domains.travel.teacher import HABITS, HELD_OUT, Teacher, travel_splits
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.trajectory import Query, Trajectory, assistant_message, assistant_text, read_turns

ROOT = Path(__file__).resolve().parents[3]
SMALL = {"sft_size": 22, "rl_size": 23, "test_per_subtask": 4, "baseline_attempts": 3}
HASHES = """
import hashlib, json
from dataclasses import asdict
from arenarl.config.schema import DataConfig
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.domains.travel.world import build_world
from arenarl.domains.travel.teacher import travel_splits
world = build_world(0)
for results, language in (("compact", "en"), ("full", "en"), ("full", "zh")):
    config = DataConfig(language=language, sft_size=22, rl_size=23, test_per_subtask=4, baseline_attempts=3)
    for name, records in travel_splits(world, TravelEnvironment(world, results, language), config):
        text = json.dumps([asdict(record) if name.endswith("queries") else record for record in records])
        print(name, hashlib.sha256(text.encode()).hexdigest())
"""
forms = pytest.mark.parametrize(("results", "language"), [("compact", "en"), ("full", "en"), ("full", "zh")])


def splits_of(world, results="compact", language="en", **changes):
    config = DataConfig(language=language, **(SMALL | changes))
    return dict(travel_splits(world, TravelEnvironment(world, results, language), config))


@pytest.fixture(scope="module")
def splits(world):
    return splits_of(world)


def subtask_of(record):
    return record["query_id"].split("-", 2)[2].rsplit("-", 1)[0]


def test_the_same_seed_gives_the_same_bytes_in_every_process():
    outputs = printed_in_two_processes(HASHES)
    assert outputs[0] == outputs[1] and len(outputs[0].splitlines()) == 12


def test_another_seed_gives_other_queries(world, splits):
    other = splits_of(world, seed=1)
    for name in ("test_queries", "rl_queries"):
        assert not {query.query_id for query in splits[name]} & {query.query_id for query in other[name]}
        assert {query.query for query in splits[name]} != {query.query for query in other[name]}


def test_the_test_set_does_not_depend_on_how_much_is_trained_on(world, splits):
    other = splits_of(world, sft_size=5, rl_size=7, teacher_skill=0.9)
    for name in ("test_queries", "test_baselines"):
        assert other[name] == splits[name]


@forms
def test_splits_have_their_counts_and_share_no_query(world, results, language):
    splits = splits_of(world, results, language)
    assert {name: len(records) for name, records in splits.items()} == {
        "test_queries": 20,
        "test_baselines": 20,
        "rl_queries": 23,
        "sft": 22,
    }
    texts = [query.query for name in ("test_queries", "rl_queries") for query in splits[name]]
    texts += [record["messages"][0]["content"] for record in splits["sft"]]
    assert len({" ".join(text.lower().split()) for text in texts}) == 20 + 23 + 22
    ids = [query.query_id for name in ("test_queries", "rl_queries") for query in splits[name]] + [
        record["query_id"] for record in splits["sft"]
    ]
    assert len(set(ids)) == len(ids)


def test_subtasks_are_spread_evenly_and_m_day_is_held_out_of_sft(splits):
    assert Counter(query.subtask for query in splits["test_queries"]) == dict.fromkeys(SUBTASKS, 4)
    assert sorted(Counter(query.subtask for query in splits["rl_queries"]).values()) == [4, 4, 5, 5, 5]
    counts = Counter(subtask_of(record) for record in splits["sft"])
    assert (
        HELD_OUT not in counts and sorted(counts.values()) == [5, 5, 6, 6] and set(counts) == set(SUBTASKS) - {"M-Day"}
    )


def test_every_test_query_has_one_stored_baseline(splits):
    assert [record["query_id"] for record in splits["test_baselines"]] == [
        query.query_id for query in splits["test_queries"]
    ]
    assert all(Trajectory.from_record(record).answer for record in splits["test_baselines"])


@forms
def test_the_teacher_ends_with_an_answer_makes_no_wrong_call_and_speaks_the_rollouts_form(world, results, language):
    splits = splits_of(world, results, language, sft_size=60)
    for record in [*splits["sft"], *splits["test_baselines"]]:
        assert record["valid"] and Trajectory.from_record(record).answer
        assert not any(
            observation.startswith("Error")
            for turn in read_turns(record["messages"])
            for observation in turn.observations
        )
        for message in record["messages"]:
            if message["role"] == "assistant":
                assert assistant_message(assistant_text(message)) == message


@pytest.mark.parametrize("subtask", SUBTASKS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_queries_are_new_and_say_what_their_constraints_hold(world, subtask, language):
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
def test_every_query_can_be_solved_in_full(world, subtask, compact):
    """No constraint is out of reach: the best choice in the world meets them all,
    but for preferences that clash with hours."""
    from arenarl.domains.travel.truth import examine

    teacher = Teacher(world, compact)
    met = [
        examine(world, query, teacher.solve(query, random.Random(0), 1.0).messages).constraints_met
        for query in make_queries(world, subtask, "en", 40, "solvable", set())
    ]
    assert sum(met) / len(met) > 0.85


def test_habits_come_with_the_skill(world, compact):
    (query,) = make_queries(world, "Search", "en", 1, "habits", set())
    teacher = Teacher(world, compact)
    for skill, expected in ((0.0, 0), (0.3, 0.3), (1.0, 1)):
        habits = [teacher.solve(query, random.Random(seed), skill).meta["habits"] for seed in range(300)]
        assert all(set(one) == set(HABITS) for one in habits)
        for habit in HABITS:
            assert sum(one[habit] for one in habits) / 300 == pytest.approx(expected, abs=0.1)


def test_a_baseline_is_the_attempt_of_median_quality(world, compact):
    from arenarl.domains.rubrics import domain_rubric
    from arenarl.domains.travel.truth import examine

    total_score = domain_rubric("travel", "en").total

    teacher = Teacher(world, compact)
    for query in make_queries(world, "1-Day", "en", 10, "median", set()):
        rng = random.Random(3)
        qualities = sorted(
            total_score(examine(world, query, teacher.solve(query, rng, 0.5).messages).dimensions()) for _ in range(5)
        )
        chosen = teacher.median(query, random.Random(3), 0.5, 5)
        assert total_score(examine(world, query, chosen.messages).dimensions()) == qualities[2]


def test_more_skill_makes_better_trajectories(world, compact):
    from arenarl.domains.rubrics import domain_rubric
    from arenarl.domains.travel.truth import examine

    total_score = domain_rubric("travel", "en").total

    teacher = Teacher(world, compact)
    for subtask in SUBTASKS:
        queries = make_queries(world, subtask, "en", 40, "skill", set())
        means = [
            sum(
                total_score(examine(world, query, teacher.solve(query, random.Random(n), skill).messages).dimensions())
                for n, query in enumerate(queries)
            )
            for skill in (0.0, 0.3, 0.6, 1.0)
        ]
        assert means == sorted(means) and means[0] < means[-1]
