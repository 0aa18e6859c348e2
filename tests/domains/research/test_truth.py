"""What is true of a research trajectory: facts and answers by hand, and that a more skilled teacher is never worse."""

import random
from pathlib import Path

import pytest
from parts import domain_of

from arenarl.config.load import load_config
from arenarl.domains.environments import make_environment
from arenarl.domains.research.open_queries import OPEN_SUBTASKS, make_open_queries
from arenarl.domains.research.questions import SUBTASK, make_questions
from arenarl.judges.judge import rubric_of
from arenarl.trajectory import Query

CONFIG = load_config(
    Path(__file__).resolve().parents[3] / "configs/research/quickstart.yaml", ["environment.search.corpus_size=200"]
)


@pytest.fixture(scope="module")
def domain():
    return domain_of(CONFIG)


@pytest.fixture(scope="module")
def environment():
    return make_environment(CONFIG.environment, CONFIG.data.language)


@pytest.fixture(scope="module")
def queries(domain, environment):
    closed = make_questions(domain.corpus, environment, CONFIG.data.research, "truth", 6)
    return closed + make_open_queries(domain.corpus, "truth", 9)


def messages(query, answer, *seen):
    found = [{"role": "user", "content": query.query}]
    for asked, observation in seen:
        call = {"type": "function", "function": {"name": "search", "arguments": {"query": asked}}}
        found += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": observation}]
    return [*found, {"role": "assistant", "content": f"<answer>\n{answer}\n</answer>"}]


def test_the_dimensions_are_those_of_the_rubric(domain, environment, queries):
    for query in queries:
        truth = domain.examine(query, domain.solve(query, environment, random.Random(0), 0.5).messages)
        assert tuple(truth.dimensions()) == rubric_of(query).names
        assert all(0 <= score <= 10 for score in truth.dimensions().values())


def test_all_good_habits_give_all_points_but_few_and_none_give_few(domain, environment, queries):
    for subtask in (SUBTASK, *OPEN_SUBTASKS):
        totals = {}
        for skill in (0.0, 1.0):
            taught = [
                (query, domain.solve(query, environment, random.Random(7), skill))
                for query in queries
                if query.subtask == subtask
            ]
            totals[skill] = [
                rubric_of(query).total(domain.examine(query, one.messages).dimensions()) for query, one in taught
            ]
        assert min(totals[1.0]) > 8 and sum(totals[1.0]) > 1.15 * sum(totals[0.0])


def test_a_closed_question_by_hand(domain):
    query = Query(
        "q",
        "research",
        SUBTASK,
        "en",
        "x?",
        {"answer": "1643", "answer_aliases": [], "entities": ["Kelmar", "Ann Lee"]},
    )
    seen = [("Kelmar", "Kelmar: Kelmar was founded in 1643."), ("Kelmar", "Kelmar: Kelmar was founded in 1643.")]
    right = domain.examine(query, messages(query, "1643", *seen))
    assert right.figures() == {"accuracy": 100.0, "entity_recall": 50.0} and right.passes() == {"accuracy": True}
    assert (right.framework, right.tool_usage, right.relevance, right.depth, right.clarity) == (0.5, 0.5, 1.0, 0.5, 1.0)
    assert right.coverage == pytest.approx(2 / 3)
    wrong = domain.examine(query, messages(query, "1644", *seen))
    assert (wrong.accuracy, wrong.relevance, wrong.passes()) == (0.0, 0.0, {"accuracy": False})
    assert wrong.verified(True).figures()["accuracy"] == 100.0 and right.verified(False).accuracy == 0.0
    for one in (right, wrong):  # without a verdict no figure, and the total of the exact comparison
        assert "accuracy" not in one.verified(None).figures() and one.verified(None).dimensions() == one.dimensions()


def test_an_open_ended_query_by_hand(domain, queries):
    """Of the facts one is stated as the tools said it, one with a value of its own invention."""
    query = next(query for query in queries if query.subtask == "Overview")
    facts, (name,) = query.constraints["facts"], query.constraints["entities"]
    invented = facts[1]["sentence"].replace(facts[1]["value"], "Nobody Knows")
    shown = " ".join(fact["sentence"] for fact in facts[:2])
    truth = domain.examine(query, messages(query, f"{facts[0]['sentence']} {invented}", (name, f"{name}: {shown}")))
    assert (
        truth.accuracy == 0.5
        and truth.depth == pytest.approx(1 / len(facts))
        and truth.coverage == pytest.approx(2 / len(facts))
    )
    assert truth.relevance == truth.framework == truth.tool_usage == 1.0
    assert (
        truth.figures() == {"groundedness": 50.0, "facts_covered": pytest.approx(100 / len(facts))}
        and truth.passes() == {}
    )
    reworded = f"{name}, as far as we know, has to do with {facts[0]['value']}."
    assert domain.examine(query, messages(query, reworded, (name, shown))).accuracy == 1.0
    assert domain.examine(query, messages(query, reworded)).accuracy == 0.0
    assert domain.examine_view(query, messages(query, reworded)).accuracy == 1.0


def test_a_name_or_value_within_a_longer_one_is_another(domain, queries):
    """What a garbling policy writes: letters or digits too many, or the name of another place."""
    for query in (query for query in queries if query.subtask in OPEN_SUBTASKS):
        for fact in query.constraints["facts"]:
            name = domain.corpus.entities[fact["url"]].name
            longer_name, longer = (f"{words}{'4' if words[-1].isdigit() else 's'}" for words in (name, fact["value"]))
            claim = f"{name} has to do with {fact['value']}."
            assert domain.examine(query, messages(query, claim, (name, fact["sentence"]))).depth > 0
            for garbled in (
                claim.replace(fact["value"], longer),
                claim.replace(name, longer_name),
                claim.replace(name, f"Mc{name}"),
            ):
                truth = domain.examine(query, messages(query, garbled, (name, fact["sentence"])))
                assert (truth.depth, truth.accuracy) == (0.0, 0.0), garbled
            assert (
                domain.examine(
                    query, messages(query, claim, (name, fact["sentence"].replace(fact["value"], longer)))
                ).coverage
                == 0.0
            )


def test_saying_it_twice_costs_clarity_and_an_outline_has_numbered_lines(domain, queries):
    overview = next(query for query in queries if query.subtask == "Overview")
    sentence = overview.constraints["facts"][0]["sentence"]
    once, twice = (
        domain.examine(overview, messages(overview, " ".join([sentence] * count))).clarity for count in (1, 2)
    )
    assert (once, twice) == (1.0, 0.5)
    outline = next(query for query in queries if query.subtask == "Ideation")
    sentence = outline.constraints["facts"][0]["sentence"]
    assert domain.examine(outline, messages(outline, sentence)).clarity == 0.5
    assert domain.examine(outline, messages(outline, f"1. {sentence}")).clarity > 0.5


def test_a_trajectory_that_says_nothing_has_no_points(domain, queries):
    for query in queries:
        assert set(domain.examine(query, [{"role": "user", "content": query.query}]).dimensions().values()) == {0.0}


def test_an_own_query_whose_facts_or_entities_are_not_understood_has_no_truth(domain, queries):
    known = next(query for query in queries if query.subtask == "Overview")
    assert domain.has_truth(known)
    (fact, *_), wanted = known.constraints["facts"], known.constraints
    odd_facts = ([], ["x"], [fact | {"url": "elsewhere"}], [fact | {"value": 3}])
    for odd in ({"entities": None}, {"entities": [1]}, *({"facts": facts} for facts in odd_facts)):
        assert not domain.has_truth(Query("q", "research", "s", "en", "x?", wanted | odd))
