"""The research domain: open-ended queries, the scripted teacher, the splits, and the truth of a trajectory."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from parts import domain_of

from arenarl.config.command_line import as_overrides
from arenarl.config.load import load_config
from arenarl.domains.environments import make_environment
from arenarl.domains.research.open_queries import OPEN_SUBTASKS, fact_coverage, make_open_queries
from arenarl.domains.research.questions import SUBTASK, make_questions
from arenarl.domains.research.teacher import HABITS, OPEN_HABITS, Teacher
from arenarl.judges.judge import rubric_of
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory, assistant_message, assistant_text, read_turns

FILE = Path(__file__).resolve().parents[3] / "configs/research/quickstart.yaml"
SMALL = {
    "environment.search.corpus_size": 500, "environment.search.results": 3, "environment.search.snippet_words": 20,
    "data.sft_size": 24, "data.rl_size": 15, "data.test_per_subtask": 3, "data.baseline_attempts": 3,
    "data.research.open_share": 0.5, "data.research.hop_weights": [1, 1],
}  # fmt: skip


CONFIG = load_config(FILE, as_overrides(SMALL))


@pytest.fixture(scope="module")
def domain():
    return domain_of(CONFIG)


@pytest.fixture(scope="module")
def environment(request):
    return make_environment(replace(CONFIG.environment, results=getattr(request, "param", "compact")), "en")


@pytest.fixture(scope="module")
def queries(domain, environment):
    closed = make_questions(domain.corpus, environment, CONFIG.data.research, "teach", 20)
    return closed + make_open_queries(domain.corpus, "teach", 30)


def splits_of(environment, changes=()):
    other = domain_of(load_config(FILE, as_overrides(SMALL | dict(changes))))
    return other.subtasks, dict(other.splits(environment))


def test_open_queries_name_the_entities_and_attributes_of_their_facts(domain):
    corpus = domain.corpus
    queries = make_open_queries(corpus, "open", 90)
    assert Counter(query.subtask for query in queries) == dict.fromkeys(OPEN_SUBTASKS, 30)
    assert len({query.query for query in queries}) == 90
    for query in queries:
        wanted = query.constraints
        assert wanted["entities"][0] in query.query and 3 <= len(wanted["facts"]) <= 8
        assert {corpus.entities[fact["url"]].name for fact in wanted["facts"]} == set(wanted["entities"])
        for fact in wanted["facts"]:
            assert fact["attribute"] in query.query and fact["value"] in fact["sentence"]
            assert corpus.entities[fact["url"]].single[fact["attribute"]].sentence == fact["sentence"]
    assert make_open_queries(corpus, "open", 90) == queries != make_open_queries(corpus, "other", 90)


def test_a_fact_is_covered_if_entity_and_value_are_in_one_sentence(domain):
    corpus = domain.corpus
    person = next(entity for entity in corpus.entities.values() if {"birth year", "death year"} <= set(entity.single))
    wanted = {"facts": [vars(person.single[attribute]) for attribute in ("birth year", "death year")]}
    born, died = (fact["value"] for fact in wanted["facts"])
    assert fact_coverage(corpus, wanted, f"{person.name} was born in {born}. {person.name} died in {died}.") == 1.0
    assert fact_coverage(corpus, wanted, f"{person.name}: born {born}\nSomeone died in {died}.") == 0.5
    assert fact_coverage(corpus, wanted, f"{person.name} lived. Born in {born}, dead by {died}.") == 0.0


def solve(teacher, query, seed, skill):
    return asyncio.run(teacher.solve(query, random.Random(seed), skill))


@pytest.mark.parametrize("environment", ["compact", "full"], indirect=True)
def test_a_careful_teacher_solves_all_queries_with_valid_calls_and_messages(domain, environment, queries):
    teacher, coverages = Teacher(domain.corpus, environment), []
    for index, query in enumerate(queries):
        quality = domain._quality(query, solve(teacher, query, 0, 1.0))
        assert query.subtask != SUBTASK or quality == 1.0
        coverages += [] if query.subtask == SUBTASK else [quality]
        trajectory = solve(teacher, query, index, 0.5)
        assert trajectory.valid and trajectory.answer and trajectory.messages[0]["content"] == query.query
        assert Trajectory.from_record(trajectory.to_record()).messages == trajectory.messages
        turns = read_turns(trajectory.messages)
        assert not any(observation.startswith("Error") for turn in turns for observation in turn.observations)
        for message in (message for message in trajectory.messages if message["role"] == "assistant"):
            assert assistant_message(assistant_text(message)) == message
    assert sum(coverages) / len(coverages) > 0.95


def test_skill_sets_the_share_of_habits_and_more_habits_give_better_answers(domain, environment, queries):
    teacher, means = Teacher(domain.corpus, environment), []
    for skill in (0.0, 0.5, 1.0):
        pairs = [(query, solve(teacher, query, index, skill)) for index, query in enumerate(queries)]
        for query, trajectory in pairs:
            assert set(trajectory.meta["habits"]) == set(HABITS if query.subtask == SUBTASK else OPEN_HABITS)
        habits = [is_on for _, trajectory in pairs for is_on in trajectory.meta["habits"].values()]
        assert sum(habits) / len(habits) == pytest.approx(skill, abs=0.1)
        means.append(sum(domain._quality(*pair) for pair in pairs) / len(pairs))
    assert means == sorted(means) and means[0] < 0.2 < 0.9 < means[2]


def test_a_baseline_is_the_attempt_of_median_quality(domain, environment, queries):
    test, data, rng = queries[-6:], domain.data, random.Random(f"research{domain.data.seed}-baselines")
    baselines = dict(domain.make_splits(environment, iter, test, [], []))["test_baselines"]
    for query, baseline in zip(test, baselines, strict=True):
        attempts = [domain.solve(query, environment, rng, data.baseline_skill) for _ in range(data.baseline_attempts)]
        qualities = sorted(domain._quality(query, attempt) for attempt in attempts)
        assert domain._quality(query, Trajectory.from_record(baseline)) == qualities[len(attempts) // 2]


def test_splits_have_their_sizes_share_no_query_and_depend_only_on_the_settings(environment):
    _, splits = splits_of(environment)
    sizes = {"test_queries": 12, "test_baselines": 12, "rl_queries": 15, "sft": 24}
    assert {name: len(records) for name, records in splits.items()} == sizes
    test, rl, sft = splits["test_queries"], splits["rl_queries"], splits["sft"]
    texts = [query.query for query in test + rl] + [record["messages"][0]["content"] for record in sft]
    ids = [query.query_id for query in test + rl] + [record["query_id"] for record in sft]
    assert len({" ".join(text.lower().split()) for text in texts}) == len(set(ids)) == 12 + 15 + 24
    assert Counter(query.subtask for query in test) == dict.fromkeys((*OPEN_SUBTASKS, SUBTASK), 3)
    assert [record["query_id"] for record in splits["test_baselines"]] == [query.query_id for query in test]
    assert splits_of(environment)[1] == splits
    _, other = splits_of(environment, {"data.sft_size": 3, "data.rl_size": 2, "data.teacher_skill": 0.9})
    assert other["test_queries"] == test and other["test_baselines"] == splits["test_baselines"]


@pytest.mark.parametrize(
    ("share", "subtasks"), [(0.0, (SUBTASK,)), (1.0, OPEN_SUBTASKS), (0.5, (*OPEN_SUBTASKS, SUBTASK))]
)
def test_the_share_of_open_ended_queries_sets_the_subtasks(environment, share, subtasks):
    sizes = {"data.sft_size": 8, "data.rl_size": 8, "data.test_per_subtask": 1}
    names, splits = splits_of(environment, sizes | {"data.research.open_share": share})
    assert names == subtasks
    for name in ("rl_queries", "test_queries"):
        assert {query.subtask for query in splits[name]} == set(subtasks)


def test_another_language_is_refused(environment):
    with pytest.raises(UserError, match="data.language=zh: the research domain's queries are in English"):
        splits_of(environment, {"data.language": "zh"})


def messages(query, answer, *searches):
    result = [{"role": "user", "content": query.query}]
    for words, observation in searches:
        call = {"type": "function", "function": {"name": "search", "arguments": {"query": words}}}
        result += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": observation}]
    return [*result, {"role": "assistant", "content": f"<answer>\n{answer}\n</answer>"}]


def test_the_dimensions_match_the_rubric_and_good_habits_score_high(domain, environment, queries):
    totals = {}
    for query in queries:
        for skill in (0.0, 0.5, 1.0):
            truth = domain.examine(query, domain.solve(query, environment, random.Random(7), skill).messages)
            assert tuple(truth.dimensions()) == rubric_of(query).names
            assert all(0 <= score <= 10 for score in truth.dimensions().values())
            totals.setdefault((query.subtask, skill), []).append(rubric_of(query).total(truth.dimensions()))
    for subtask in (SUBTASK, *OPEN_SUBTASKS):
        good, bad = totals[subtask, 1.0], totals[subtask, 0.0]
        assert min(good) > 7 and sum(good) / len(good) > 9 and sum(good) > 1.15 * sum(bad)


def test_a_closed_question_worked_by_hand(domain):
    known = {"answer": "1643", "answer_aliases": [], "entities": ["Kelmar", "Ann Lee"]}
    query = Query("q", "research", SUBTASK, "en", "x?", known)
    searches = [("Kelmar", "Kelmar: Kelmar was founded in 1643.")] * 2
    right = domain.examine(query, messages(query, "1643", *searches))
    assert right.figures() == {"accuracy": 100.0, "entity_recall": 50.0} and right.passes() == {"accuracy": True}
    assert (right.framework, right.tool_usage, right.relevance, right.depth, right.clarity) == (0.5, 0.5, 1.0, 0.5, 1.0)
    assert right.coverage == pytest.approx(2 / 3)
    wrong = domain.examine(query, messages(query, "1644", *searches))
    assert (wrong.accuracy, wrong.relevance, wrong.passes()) == (0.0, 0.0, {"accuracy": False})
    assert wrong.verified(True).figures()["accuracy"] == 100.0 and right.verified(False).accuracy == 0.0
    for truth in (right, wrong):  # without a verdict, no figure, and the scores of the exact comparison
        unverified = truth.verified(None)
        assert "accuracy" not in unverified.figures() and unverified.dimensions() == truth.dimensions()


def test_an_open_ended_query_worked_by_hand(domain, queries):
    """The answer states one fact as the tools did, and another with an invented value."""
    query = next(query for query in queries if query.subtask == "Overview")
    facts, (name,) = query.constraints["facts"], query.constraints["entities"]
    invented = facts[1]["sentence"].replace(facts[1]["value"], "Nobody Knows")
    shown = " ".join(fact["sentence"] for fact in facts[:2])
    truth = domain.examine(query, messages(query, f"{facts[0]['sentence']} {invented}", (name, f"{name}: {shown}")))
    share = pytest.approx(1 / len(facts))
    assert (truth.accuracy, truth.depth) == (0.5, share) and truth.coverage == pytest.approx(2 / len(facts))
    assert truth.relevance == truth.framework == truth.tool_usage == 1.0 and truth.passes() == {}
    assert truth.figures() == {"groundedness": 50.0, "facts_covered": pytest.approx(100 / len(facts))}
    reworded = f"{name}, as far as we know, has to do with {facts[0]['value']}."
    assert domain.examine(query, messages(query, reworded, (name, shown))).accuracy == 1.0
    assert domain.examine(query, messages(query, reworded)).accuracy == 0.0
    assert domain.examine_view(query, messages(query, reworded)).accuracy == 1.0


def test_a_name_or_value_inside_a_longer_one_does_not_count(domain, queries):
    """A garbling policy adds letters or digits, or writes the name of another place."""

    def examine(query, name, claim, result):
        return domain.examine(query, messages(query, claim, (name, result)))

    for query in (query for query in queries if query.subtask in OPEN_SUBTASKS):
        for fact in query.constraints["facts"]:
            name, value, sentence = domain.corpus.entities[fact["url"]].name, fact["value"], fact["sentence"]
            longer_name, longer = (f"{words}{'4' if words[-1].isdigit() else 's'}" for words in (name, value))
            claim = f"{name} has to do with {value}."
            assert examine(query, name, claim, sentence).depth > 0
            assert examine(query, name, claim, sentence.replace(value, longer)).coverage == 0.0
            for old, new in ((value, longer), (name, longer_name), (name, f"Mc{name}")):
                truth = examine(query, name, claim.replace(old, new), sentence)
                assert (truth.depth, truth.accuracy) == (0.0, 0.0), (claim, new)


def test_repetition_costs_clarity_and_an_outline_needs_numbered_lines(domain, queries):
    overview = next(query for query in queries if query.subtask == "Overview")
    sentence = overview.constraints["facts"][0]["sentence"]
    texts = (sentence, f"{sentence} {sentence}")
    once, twice = (domain.examine(overview, messages(overview, text)).clarity for text in texts)
    assert (once, twice) == (1.0, 0.5)
    outline = next(query for query in queries if query.subtask == "Ideation")
    sentence = outline.constraints["facts"][0]["sentence"]
    assert domain.examine(outline, messages(outline, sentence)).clarity == 0.5
    assert domain.examine(outline, messages(outline, f"1. {sentence}")).clarity > 0.5


def test_an_empty_trajectory_scores_zero(domain, queries):
    for query in queries:
        assert set(domain.examine(query, [{"role": "user", "content": query.query}]).dimensions().values()) == {0.0}


def test_a_query_with_other_facts_or_entities_has_no_truth(domain, queries):
    known = next(query for query in queries if query.subtask == "Overview")
    assert domain.has_truth(known)
    (fact, *_), wanted = known.constraints["facts"], known.constraints
    odd_facts = ([], ["x"], [fact | {"url": "elsewhere"}], [fact | {"value": 3}])
    for change in ({"entities": None}, {"entities": [1]}, *({"facts": facts} for facts in odd_facts)):
        assert not domain.has_truth(Query("q", "research", "s", "en", "x?", wanted | change))
