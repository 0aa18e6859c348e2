"""Open-ended queries, the scripted teacher, and the splits of the research domain."""

import asyncio
import random
from collections import Counter

import pytest

from arenarl.config.schema import DataConfig, EnvironmentConfig, ResearchDataConfig, SearchConfig
from arenarl.domains.research.corpus import build_corpus
from arenarl.domains.research.domain import ResearchDomain
from arenarl.domains.research.environment import ResearchEnvironment
from arenarl.domains.research.open_queries import OPEN_SUBTASKS, covered, make_open_queries
from arenarl.domains.research.questions import SUBTASK, make_questions
from arenarl.domains.research.solver import HABITS
from arenarl.domains.research.teacher import OPEN_HABITS, Teacher
from arenarl.system.errors import UserError
from arenarl.trajectory import Trajectory, assistant_message, assistant_text, read_turns

PLAIN = ResearchDataConfig(plain_share=1.0, hop_weights=[1.0, 1.0], max_tool_calls=4)
SMALL = {
    "language": "en",
    "sft_size": 24,
    "rl_size": 15,
    "test_per_subtask": 3,
    "baseline_attempts": 3,
    "research": PLAIN,
}
forms = pytest.mark.parametrize("environment", ["compact", "full"], indirect=True)


@pytest.fixture(scope="module")
def corpus():
    return build_corpus(0)


@pytest.fixture(scope="module")
def environment(request):
    search = SearchConfig(results=3, snippet_words=20)
    return ResearchEnvironment.from_config(
        EnvironmentConfig(results=getattr(request, "param", "compact"), search=search), "en"
    )


@pytest.fixture(scope="module")
def queries(corpus, environment):
    return make_questions(corpus, environment, PLAIN, "teach", 20) + make_open_queries(corpus, "teach", 30)


def splits_of(environment, **changes):
    return dict(ResearchDomain(EnvironmentConfig(), DataConfig(**(SMALL | changes))).splits(environment))


def test_open_queries_name_what_their_facts_are_about(corpus):
    queries = make_open_queries(corpus, "open", 90)
    assert (
        Counter(query.subtask for query in queries) == dict.fromkeys(OPEN_SUBTASKS, 30)
        and len({query.query for query in queries}) == 90
    )
    for query in queries:
        wanted = query.constraints
        assert wanted["entities"][0] in query.query and 3 <= len(wanted["facts"]) <= 8
        assert {corpus.entities[fact["url"]].name for fact in wanted["facts"]} == set(wanted["entities"])
        for fact in wanted["facts"]:
            assert fact["attribute"] in query.query and fact["value"] in fact["sentence"]
            assert corpus.entities[fact["url"]].single[fact["attribute"]].sentence == fact["sentence"]
    assert make_open_queries(corpus, "open", 90) == queries != make_open_queries(corpus, "other", 90)


def test_a_fact_is_covered_where_its_subject_and_its_value_stand_together(corpus):
    person = next(entity for entity in corpus.entities.values() if {"birth year", "death year"} <= set(entity.single))
    facts = [vars(person.single[attribute]) for attribute in ("birth year", "death year")]
    wanted = {"facts": facts}
    born, died = (fact["value"] for fact in facts)
    assert covered(corpus, wanted, f"{person.name} was born in {born}. {person.name} died in {died}.") == 1.0
    assert covered(corpus, wanted, f"{person.name}: born {born}\nSomeone died in {died}.") == 0.5
    assert covered(corpus, wanted, f"{person.name} lived. Born in {born}, dead by {died}.") == 0.0


@forms
def test_a_careful_teacher_answers_and_covers(corpus, environment, queries):
    teacher = Teacher(corpus, environment)
    quality = {
        query.query_id: teacher.quality(query, asyncio.run(teacher.solve(query, random.Random(0), 1.0)).answer)
        for query in queries
    }
    assert all(quality[query.query_id] == 1.0 for query in queries if query.subtask == SUBTASK)
    opened = [quality[query.query_id] for query in queries if query.subtask != SUBTASK]
    assert sum(opened) / len(opened) > 0.95


@forms
def test_the_teacher_speaks_the_rollouts_form_and_makes_no_wrong_call(corpus, environment, queries):
    teacher = Teacher(corpus, environment)
    for index, query in enumerate(queries):
        trajectory = asyncio.run(teacher.solve(query, random.Random(index), 0.5))
        assert trajectory.valid and trajectory.answer and trajectory.messages[0]["content"] == query.query
        assert Trajectory.from_record(trajectory.to_record()).messages == trajectory.messages
        assert not any(
            observation.startswith("Error")
            for turn in read_turns(trajectory.messages)
            for observation in turn.observations
        )
        for message in trajectory.messages:
            if message["role"] == "assistant":
                assert assistant_message(assistant_text(message)) == message


def test_habits_come_with_the_skill_and_better_habits_make_better_answers(corpus, environment, queries):
    teacher, means = Teacher(corpus, environment), []
    for skill in (0.0, 0.5, 1.0):
        solved = [
            (query, asyncio.run(teacher.solve(query, random.Random(index), skill)))
            for index, query in enumerate(queries)
        ]
        for query, trajectory in solved:
            assert set(trajectory.meta["habits"]) == set(HABITS if query.subtask == SUBTASK else OPEN_HABITS)
        on = [is_on for _, trajectory in solved for is_on in trajectory.meta["habits"].values()]
        assert sum(on) / len(on) == pytest.approx(skill, abs=0.1)
        means.append(sum(teacher.quality(query, trajectory.answer) for query, trajectory in solved) / len(solved))
    assert means == sorted(means) and means[0] < 0.2 < 0.9 < means[2]


def test_a_baseline_is_the_attempt_of_median_quality(corpus, environment, queries):
    teacher = Teacher(corpus, environment)
    for query in queries[-6:]:
        rng = random.Random(3)
        qualities = sorted(teacher.quality(query, asyncio.run(teacher.solve(query, rng, 0.5)).answer) for _ in range(5))
        assert (
            teacher.quality(query, asyncio.run(teacher.median(query, random.Random(3), 0.5, 5)).answer) == qualities[2]
        )


def test_splits_have_their_counts_and_share_no_query(corpus, environment):
    splits = splits_of(environment)
    assert {name: len(records) for name, records in splits.items()} == {
        "test_queries": 12,
        "test_baselines": 12,
        "rl_queries": 15,
        "sft": 24,
    }
    texts = [query.query for name in ("test_queries", "rl_queries") for query in splits[name]]
    texts += [record["messages"][0]["content"] for record in splits["sft"]]
    assert len({" ".join(text.lower().split()) for text in texts}) == 12 + 15 + 24
    assert Counter(query.subtask for query in splits["test_queries"]) == dict.fromkeys((*OPEN_SUBTASKS, SUBTASK), 3)
    assert [record["query_id"] for record in splits["test_baselines"]] == [
        query.query_id for query in splits["test_queries"]
    ]
    ids = [query.query_id for name in ("test_queries", "rl_queries") for query in splits[name]] + [
        record["query_id"] for record in splits["sft"]
    ]
    assert len(set(ids)) == len(ids)


def test_the_same_settings_make_the_same_splits_and_the_test_set_does_not_depend_on_how_much_is_trained_on(
    corpus, environment
):
    splits = splits_of(environment)
    assert splits_of(environment) == splits
    other = splits_of(environment, sft_size=3, rl_size=2, teacher_skill=0.9)
    assert other["test_queries"] == splits["test_queries"] and other["test_baselines"] == splits["test_baselines"]


@pytest.mark.parametrize(
    ("share", "subtasks"), [(0.0, (SUBTASK,)), (1.0, OPEN_SUBTASKS), (0.5, (*OPEN_SUBTASKS, SUBTASK))]
)
def test_the_share_of_open_ended_queries_decides_which_there_are(corpus, environment, share, subtasks):
    research = ResearchDataConfig(**vars(PLAIN) | {"open_share": share})
    splits = splits_of(environment, research=research, sft_size=8, rl_size=8, test_per_subtask=1)
    assert (
        {query.subtask for query in splits["rl_queries"]}
        == {query.subtask for query in splits["test_queries"]}
        == set(subtasks)
    )


def test_another_language_is_refused(corpus, environment):
    with pytest.raises(UserError, match="data.language=zh: the research domain's queries are in English"):
        splits_of(environment, language="zh")
