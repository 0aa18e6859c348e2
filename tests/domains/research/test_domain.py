"""The research domain: open-ended queries, the scripted teacher, and the truth of a trajectory."""

import asyncio
import random
from collections import Counter, defaultdict

import pytest

from arenarl.config.schema import DataConfig, EnvironmentConfig, ResearchDataConfig, SearchConfig
from arenarl.domains.domain import make_domain
from arenarl.domains.environments import make_environment
from arenarl.domains.research.open_queries import OPEN_SUBTASKS, fact_coverage, make_open_queries
from arenarl.domains.research.questions import SUBTASK, make_questions
from arenarl.domains.research.teacher import HABITS, OPEN_HABITS, Teacher
from arenarl.judges.judge import rubric_of
from arenarl.trajectory import Query

SEARCH = SearchConfig(corpus_size=500, results=3, snippet_words=20, summary_above_chars=300)
RESEARCH = ResearchDataConfig(plain_share=1.0, hop_weights=[1, 1], max_tool_calls=4)


@pytest.fixture(scope="module")
def domain():
    world = EnvironmentConfig(domain="research", search=SEARCH)
    return make_domain(world, DataConfig(language="en", research=RESEARCH))


@pytest.fixture(scope="module")
def environment(request):
    results = getattr(request, "param", "compact")
    return make_environment(EnvironmentConfig(name="research", results=results, search=SEARCH), "en")


@pytest.fixture(scope="module")
def queries(domain, environment):
    closed = make_questions(domain.corpus, environment, RESEARCH, "teach", 20)
    return closed + make_open_queries(domain.corpus, "teach", 30)


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


@pytest.mark.parametrize("environment", ["compact", "full"], indirect=True)
def test_more_skill_means_more_habits_better_answers_and_higher_scores(domain, environment, queries):
    teacher, means, totals = Teacher(domain.corpus, environment), [], defaultdict(list)
    for skill in (0.0, 0.5, 1.0):
        solved = [asyncio.run(teacher.solve(query, random.Random(k), skill)) for k, query in enumerate(queries)]
        qualities = [domain._quality(query, trajectory) for query, trajectory in zip(queries, solved, strict=True)]
        for query, trajectory in zip(queries, solved, strict=True):
            assert set(trajectory.meta["habits"]) == set(HABITS if query.subtask == SUBTASK else OPEN_HABITS)
            dimensions, rubric = domain.examine(query, trajectory.messages).dimensions(), rubric_of(query)
            assert tuple(dimensions) == rubric.names and all(0 <= score <= 10 for score in dimensions.values())
            totals[query.subtask, skill].append(rubric.total(dimensions))
            empty = domain.examine(query, trajectory.messages[:1])
            assert set(empty.dimensions().values()) == {0.0}
        habits = [is_on for trajectory in solved for is_on in trajectory.meta["habits"].values()]
        assert sum(habits) / len(habits) == pytest.approx(skill, abs=0.1)
        means.append(sum(qualities) / len(queries))
    assert means == sorted(means) and means[0] < 0.2
    careful = {is_closed: [] for is_closed in (True, False)}
    for query, quality in zip(queries, qualities, strict=True):
        careful[query.subtask == SUBTASK].append(quality)
    assert set(careful[True]) == {1.0} and sum(careful[False]) / len(careful[False]) > 0.95
    for subtask in (SUBTASK, *OPEN_SUBTASKS):
        good, bad = totals[subtask, 1.0], totals[subtask, 0.0]
        assert min(good) > 7 and sum(good) / len(good) > 9 and sum(good) > 1.15 * sum(bad)


def messages(query, answer, *searches):
    result = [{"role": "user", "content": query.query}]
    for words, observation in searches:
        call = {"type": "function", "function": {"name": "search", "arguments": {"query": words}}}
        result += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": observation}]
    return [*result, {"role": "assistant", "content": f"<answer>\n{answer}\n</answer>"}]


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


def test_a_query_with_other_facts_or_entities_has_no_truth(domain, queries):
    known = next(query for query in queries if query.subtask == "Overview")
    assert domain.has_truth(known)
    (fact, *_), wanted = known.constraints["facts"], known.constraints
    odd_facts = ([], ["x"], [fact | {"url": "elsewhere"}], [fact | {"value": 3}])
    for change in ({"entities": None}, {"entities": [1]}, *({"facts": facts} for facts in odd_facts)):
        assert not domain.has_truth(Query("q", "research", "s", "en", "x?", wanted | change))
