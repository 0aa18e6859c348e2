"""The truth of writing: full marks are possible, whatever is broken costs, whatever is mended pays,
and nobody's text breaks it."""

import random
import re
from dataclasses import replace

import pytest
from hostile import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.writing.domain import WritingDomain
from arenarl.domains.writing.lexicon import LEXICONS, length_of
from arenarl.domains.writing.queries import SUBTASKS, make_queries
from arenarl.domains.writing.truth import examine, has_truth
from arenarl.domains.writing.writer import HABITS, solve, write
from arenarl.trajectory import Query, assistant_message

LANGUAGES = list(LEXICONS)
each_language = pytest.mark.parametrize("language", LANGUAGES)
REFUSALS = {"en": "I am sorry, but I cannot write this.", "zh": "抱歉，我不能写这个。"}


def queries_of(language, seed=0, count=20):
    return [query for subtask in SUBTASKS for query in make_queries(subtask, language, count, f"tests{seed}", set())]


def text_of(query, seed=0):
    """A text that fulfils all."""
    return write(query, dict.fromkeys(HABITS, True), seed).answer


def truth_of(query, text):
    return examine(query, [{"role": "user", "content": query.query}, assistant_message(f"<answer>\n{text}\n</answer>")])


def total(query, text):
    return domain_rubric("writing", query.language).total(truth_of(query, text).dimensions())


def without(text, word):
    """The text without the sentences that have the word."""
    return re.sub(rf"[^.。\n]*{word}[^.。\n]*[.。] ?", "", text)


def turned_round(text):
    title, *lines = text.splitlines()
    return "\n".join([title, *reversed(lines)])


BREAK = {  # what is done to a text -> the shares that it costs
    "a word asked for is left out": (lambda text, wanted: without(text, wanted["must"][0]), {"must", "length"}),
    "a forbidden word is used": (lambda text, wanted: f"{text} {wanted['avoid'][0]}", {"avoid"}),
    "a fact is another": (lambda text, wanted: text.replace(wanted["facts"][0], "999"), {"facts"}),
    "a heading is left out": (lambda text, wanted: text.replace(f"\n{wanted['sections'][-1]}\n", "\n"), {"sections"}),
    "the sections stand in reverse": (lambda text, wanted: turned_round(text), {"order"}),
    "all is said twice": (lambda text, wanted: f"{text}\n{text}", {"unique", "length", "order"}),
    "it is cut off": (lambda text, wanted: text[: len(text) // 3], {"length", "must", "facts", "sections", "tone"}),
    "the topic is another": (lambda text, wanted: text.replace(wanted["topic"], ""), {"topic", "length"}),
}


@each_language
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_query_can_be_fulfilled_whole(language, seed):
    for query in queries_of(language, seed):
        truth = truth_of(query, text_of(query, seed))
        assert all(truth.constraints.values()), (query.query, truth)
        assert set(truth.dimensions().values()) == {10.0} and truth.passes() == {"constraints": True}
        assert truth.figures()["constraints_met"] == 100 and 90 <= truth.figures()["length_of_asked"] <= 111


@each_language
@pytest.mark.parametrize("what", BREAK)
def test_whatever_is_broken_costs_and_only_that(what, language):
    damage, costs = BREAK[what]
    for query in queries_of(language, count=10):
        text = text_of(query)
        damaged = damage(text, query.constraints)
        whole, broken = truth_of(query, text), truth_of(query, damaged)
        lost = {name for name in whole.constraints if getattr(broken, name) < getattr(whole, name)}
        assert lost and lost <= costs and total(query, damaged) < 10, (query.query, damaged)


@each_language
def test_the_longer_a_text_is_beyond_what_is_asked_the_less_it_is_worth(language):
    for query in queries_of(language, count=5):
        text, rng = text_of(query), random.Random(0)
        qualities = []
        for _ in range(30):
            text += " " + " ".join("".join(rng.choices("abcdefgh", k=5)) for _ in range(3)) + "."
            qualities.append(total(query, text))
        assert qualities == sorted(qualities, reverse=True) and qualities[-1] <= 7.5
        assert truth_of(query, text).length == 0 and length_of(text, language) > 2 * query.constraints["length"]


@each_language
def test_each_habit_of_the_writer_pays_where_the_others_are_there(language):
    """All but repetition always: a text may have room for one sentence of its tone only."""
    for number, query in enumerate(queries_of(language, count=25)):
        for habit in HABITS:
            worth = total(query, write(query, dict.fromkeys(HABITS, True) | {habit: False}, number).answer)
            assert worth < 10 or (habit == "vary" and worth == 10), (query.query, habit)


@each_language
def test_a_refusal_and_an_empty_text_are_worth_nothing_and_less_than_any_attempt(language):
    for query in queries_of(language, count=5):
        careless = total(query, write(query, dict.fromkeys(HABITS, False), 0).answer)
        refused = truth_of(query, REFUSALS[language])
        assert not any(refused.dimensions().values())
        assert total(query, REFUSALS[language]) == total(query, "") == 0 < careless


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(HOSTILE) | st.text(alphabet="Pricehal 1234567890:月日元号厅\n.。#*", max_size=400))
def test_every_share_is_one_whatever_the_text(text):
    for query in (queries_of(language, count=1)[0] for language in LANGUAGES):
        truth = truth_of(query, text)
        assert all(0 <= getattr(truth, name) <= 1 for name in truth.constraints)
        assert all(0 <= score <= 10 for score in truth.dimensions().values())
        assert text not in HOSTILE or total(query, text) <= 5


def test_headings_are_found_in_the_forms_that_models_write():
    query = queries_of("en")[0]
    text = text_of(query)
    for form in ("## {}", "**{}**", "{}:", "# {}", "  {} "):
        lines = [form.format(line) if line in query.constraints["sections"] else line for line in text.splitlines()]
        assert truth_of(query, "\n".join(lines)).sections == 1, form


def test_a_query_of_ones_own_and_constraints_of_another_form_have_no_truth():
    query = queries_of("en")[0]
    assert (
        has_truth(query)
        and not has_truth(replace(query, constraints={}))
        and not has_truth(replace(query, language="fr"))
    )
    odd = {"length": ["60", 0], "tone": [["warm"], "loud"], "must": [None], "sections": [[]], "facts": ["f"]}
    for key, value in ((key, value) for key, values in odd.items() for value in values):
        assert not has_truth(replace(query, constraints=query.constraints | {key: value}))


@each_language
def test_a_sentence_says_what_is_missing_for_each_demand_that_a_text_does_not_meet(language):
    domain = WritingDomain(EnvironmentConfig(), DataConfig())
    for index, query in enumerate(queries_of(language, count=10)):
        text = solve(query, random.Random(index), 0.5)
        found, met = domain.contradictions(query, text), examine(query, text.messages).constraints
        assert len(found) == list(met.values()).count(False) and all("\n" not in sentence for sentence in found)
        assert domain.contradictions(query, solve(query, random.Random(index), 1.0)) == []
        lacking = [sentence for sentence in found if "lacks words" in sentence]
        assert bool(lacking) != met["must"]
        assert all(any(word in sentence for word in query.constraints["must"]) for sentence in lacking)
    assert domain.contradictions(Query("q", "writing", "poem", language, "Write a poem."), text) == []
