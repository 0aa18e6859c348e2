import json
import random
from collections import Counter

import pytest
from scripts import printed_in_two_processes

from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.travel.domain import TravelDomain
from arenarl.domains.travel.queries import HELD_OUT, SUBTASKS, make_queries
from arenarl.domains.travel.teacher import HABITS, Teacher
from arenarl.domains.travel.tools import TravelEnvironment
from arenarl.domains.travel.truth import examine
from arenarl.trajectory import Query, Trajectory, assistant_message, assistant_text, read_turns

SMALL = {"sft_size": 22, "rl_size": 23, "test_per_subtask": 4, "baseline_attempts": 3}
TOTAL = domain_rubric("travel", "en").total
HASHES = """
import hashlib, json
from dataclasses import asdict
from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.domains.travel.domain import TravelDomain
from arenarl.domains.travel.tools import TravelEnvironment
for results, language in (("compact", "en"), ("full", "en"), ("full", "zh")):
    data = DataConfig(language=language, sft_size=9, rl_size=8, test_per_subtask=1, baseline_attempts=2)
    domain = TravelDomain(EnvironmentConfig(), data)
    for name, records in domain.splits(TravelEnvironment(domain.world, results, language)):
        text = json.dumps([asdict(record) if name.endswith("queries") else record for record in records])
        print(name, hashlib.sha256(text.encode()).hexdigest())
"""


def splits_of(world, results="compact", language="en", **changes):
    domain = TravelDomain(EnvironmentConfig(), DataConfig(language=language, **(SMALL | changes)))
    return dict(domain.splits(TravelEnvironment(world, results, language)))


@pytest.fixture(scope="module")
def splits(world):
    return splits_of(world)


def subtask_of(record):
    return record["query_id"].split("-", 2)[2].rsplit("-", 1)[0]


def test_the_same_seed_gives_the_same_bytes_in_every_process():
    outputs = printed_in_two_processes(HASHES)
    assert outputs[0] == outputs[1] and len(outputs[0].splitlines()) == 12


def test_another_seed_gives_other_queries_and_training_sizes_do_not_change_the_test_set(world, splits):
    other, less = splits_of(world, seed=1), splits_of(world, sft_size=5, rl_size=7, teacher_skill=0.9)
    for name in ("test_queries", "rl_queries"):
        assert not {query.query_id for query in splits[name]} & {query.query_id for query in other[name]}
        assert {query.query for query in splits[name]} != {query.query for query in other[name]}
    assert all(less[name] == splits[name] for name in ("test_queries", "test_baselines"))


@pytest.mark.parametrize(("results", "language"), [("compact", "en"), ("full", "en"), ("full", "zh")])
def test_splits_have_the_configured_sizes_and_no_common_query_and_trajectories_parse_as_rollouts(
    world, results, language
):
    splits = splits_of(world, results, language)
    queries = splits["test_queries"] + splits["rl_queries"]
    counts = {name: len(records) for name, records in splits.items()}
    assert counts == {"test_queries": 20, "test_baselines": 20, "rl_queries": 23, "sft": 22}
    texts = [query.query for query in queries] + [record["messages"][0]["content"] for record in splits["sft"]]
    assert len({" ".join(text.lower().split()) for text in texts}) == 20 + 23 + 22
    assert len({query.query_id for query in queries} | {record["query_id"] for record in splits["sft"]}) == 20 + 23 + 22
    for record in splits["sft"] + splits["test_baselines"]:
        assert record["valid"] and Trajectory.from_record(record).answer
        observations = [text for turn in read_turns(record["messages"]) for text in turn.observations]
        assert not any(text.startswith("Error") for text in observations)
        turns = [message for message in record["messages"] if message["role"] == "assistant"]
        assert [assistant_message(assistant_text(turn)) for turn in turns] == turns


def test_subtasks_are_spread_evenly_sft_has_no_m_day_and_every_test_query_has_a_baseline(splits):
    assert Counter(query.subtask for query in splits["test_queries"]) == dict.fromkeys(SUBTASKS, 4)
    assert sorted(Counter(query.subtask for query in splits["rl_queries"]).values()) == [4, 4, 5, 5, 5]
    counts = Counter(subtask_of(record) for record in splits["sft"])
    assert sorted(counts.values()) == [5, 5, 6, 6] and set(counts) == set(SUBTASKS) - {HELD_OUT}
    ids = [query.query_id for query in splits["test_queries"]]
    assert [record["query_id"] for record in splits["test_baselines"]] == ids


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


def quality(world, query, trajectory):
    return TOTAL(examine(world, query, trajectory.messages).dimensions())


@pytest.mark.parametrize("subtask", SUBTASKS)
def test_more_skill_makes_better_trajectories_and_full_skill_meets_most_constraints(world, compact, subtask):
    teacher, means = Teacher(world, compact), []
    queries = make_queries(world, subtask, "en", 30, "skill", set())
    for skill in (0.0, 0.3, 0.6, 1.0):
        solved = [teacher.solve(query, random.Random(number), skill) for number, query in enumerate(queries)]
        means.append(sum(quality(world, *pair) for pair in zip(queries, solved, strict=True)))
    assert means == sorted(means) and means[0] < means[-1]
    pairs = zip(queries, [trajectory.messages for trajectory in solved], strict=True)
    assert sum(examine(world, *pair).constraints_met for pair in pairs) / len(queries) > 0.85


def test_the_skill_is_the_probability_of_each_habit(world, compact):
    (query,) = make_queries(world, "Search", "en", 1, "habits", set())
    teacher = Teacher(world, compact)
    for skill, expected in ((0.0, 0), (0.3, 0.3), (1.0, 1)):
        habits = [teacher.solve(query, random.Random(seed), skill).meta["habits"] for seed in range(300)]
        assert all(set(attempt) == set(HABITS) for attempt in habits)
        for habit in HABITS:
            assert sum(attempt[habit] for attempt in habits) / 300 == pytest.approx(expected, abs=0.1)


def test_a_baseline_is_the_attempt_of_median_quality(world, compact, splits):
    rng = random.Random("travel0-baselines")
    for query, baseline in zip(splits["test_queries"], splits["test_baselines"], strict=True):
        attempts = [Teacher(world, compact).solve(query, rng, DataConfig().baseline_skill) for _ in range(3)]
        median = sorted(quality(world, query, attempt) for attempt in attempts)[1]
        assert quality(world, query, Trajectory.from_record(baseline)) == median
