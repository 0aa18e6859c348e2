"""The truth of writing: full marks are possible, each fault lowers its share only, and any text can be scored."""

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
    """Return a text that meets all constraints."""
    return write(query, dict.fromkeys(HABITS, True), seed).answer


def truth_of(query, text):
    return examine(query, [{"role": "user", "content": query.query}, assistant_message(f"<answer>\n{text}\n</answer>")])


def total(query, text):
    return domain_rubric("writing", query.language).total(truth_of(query, text).dimensions())


def without(text, word):
    """Remove the sentences with a word."""
    return re.sub(rf"[^.。\n]*{word}[^.。\n]*[.。] ?", "", text)


def reverse_sections(text):
    title, *lines = text.splitlines()
    return "\n".join([title, *reversed(lines)])


FAULTS = {  # fault → the damage to a text, and the shares that it may lower
    "a word to use is missing": (lambda text, wanted: without(text, wanted["must"][0]), {"must", "length"}),
    "a word to avoid is used": (lambda text, wanted: f"{text} {wanted['avoid'][0]}", {"avoid"}),
    "a fact is wrong": (lambda text, wanted: text.replace(wanted["facts"][0], "999"), {"facts"}),
    "a heading is missing": (lambda text, wanted: text.replace(f"\n{wanted['sections'][-1]}\n", "\n"), {"sections"}),
    "the sections are reversed": (lambda text, wanted: reverse_sections(text), {"order"}),
    "the text is repeated": (lambda text, wanted: f"{text}\n{text}", {"unique", "length", "order"}),
    "the text is cut": (lambda text, wanted: text[: len(text) // 3], {"length", "must", "facts", "sections", "tone"}),
    "the topic is missing": (lambda text, wanted: text.replace(wanted["topic"], ""), {"topic", "length"}),
}


@each_language
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_query_can_be_met_completely(language, seed):
    for query in queries_of(language, seed):
        truth = truth_of(query, text_of(query, seed))
        assert all(truth.constraints.values()), (query.query, truth)
        assert set(truth.dimensions().values()) == {10.0} and truth.passes() == {"constraints": True}
        assert truth.figures()["constraints_met"] == 100 and 90 <= truth.figures()["length_of_asked"] <= 111


@each_language
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_lowers_its_own_shares_only(fault, language):
    damage, shares = FAULTS[fault]
    for query in queries_of(language, count=10):
        text = text_of(query)
        damaged = damage(text, query.constraints)
        whole, broken = truth_of(query, text), truth_of(query, damaged)
        lost = {name for name in whole.constraints if getattr(broken, name) < getattr(whole, name)}
        assert lost and lost <= shares and total(query, damaged) < 10, (query.query, damaged)


@each_language
def test_a_text_beyond_the_requested_length_scores_less_the_longer_it_is(language):
    for query in queries_of(language, count=5):
        text, rng = text_of(query), random.Random(0)
        qualities = []
        for _ in range(30):
            text += " " + " ".join("".join(rng.choices("abcdefgh", k=5)) for _ in range(3)) + "."
            qualities.append(total(query, text))
        assert qualities == sorted(qualities, reverse=True) and qualities[-1] <= 7.5
        assert truth_of(query, text).length == 0 and length_of(text, language) > 2 * query.constraints["length"]


@each_language
def test_each_habit_of_the_writer_raises_the_score(language):
    """A lack of `vary` may go unnoticed, because a text may have room for only one sentence of its tone."""
    for number, query in enumerate(queries_of(language, count=25)):
        for habit in HABITS:
            score = total(query, write(query, dict.fromkeys(HABITS, True) | {habit: False}, number).answer)
            assert score < 10 or (habit == "vary" and score == 10), (query.query, habit)


@each_language
def test_a_refusal_and_an_empty_text_score_zero_and_less_than_any_attempt(language):
    for query in queries_of(language, count=5):
        careless = total(query, write(query, dict.fromkeys(HABITS, False), 0).answer)
        assert not any(truth_of(query, REFUSALS[language]).dimensions().values())
        assert total(query, REFUSALS[language]) == total(query, "") == 0 < careless


@settings(max_examples=60)
@given(st.sampled_from(HOSTILE) | st.text(alphabet="Pricehal 1234567890:月日元号厅\n.。#*", max_size=400))
def test_shares_and_scores_stay_in_range_for_any_text(text):
    for query in (queries_of(language, count=1)[0] for language in LANGUAGES):
        truth = truth_of(query, text)
        assert all(0 <= getattr(truth, name) <= 1 for name in truth.constraints)
        assert all(0 <= score <= 10 for score in truth.dimensions().values())
        assert text not in HOSTILE or total(query, text) <= 5


def test_headings_are_found_in_common_markdown_forms():
    query = queries_of("en")[0]
    text = text_of(query)
    for form in ("## {}", "**{}**", "{}:", "# {}", "  {} "):
        lines = [form.format(line) if line in query.constraints["sections"] else line for line in text.splitlines()]
        assert truth_of(query, "\n".join(lines)).sections == 1, form


def test_queries_with_other_constraints_or_languages_have_no_truth():
    query = queries_of("en")[0]
    assert has_truth(query)
    assert not has_truth(replace(query, constraints={})) and not has_truth(replace(query, language="fr"))
    invalid = {"length": ["60", 0], "tone": [["warm"], "loud"], "must": [None], "sections": [[]], "facts": ["f"]}
    for key, value in ((key, value) for key, values in invalid.items() for value in values):
        assert not has_truth(replace(query, constraints=query.constraints | {key: value}))


@each_language
def test_each_unmet_constraint_has_a_sentence_that_says_what_is_missing(language):
    domain = WritingDomain(EnvironmentConfig(), DataConfig())
    for index, query in enumerate(queries_of(language, count=10)):
        text = solve(query, random.Random(index), 0.5)
        sentences, met = domain.contradictions(query, text), examine(query, text.messages).constraints
        assert len(sentences) == list(met.values()).count(False) and "\n" not in "".join(sentences)
        assert domain.contradictions(query, solve(query, random.Random(index), 1.0)) == []
        missing = [sentence for sentence in sentences if "lacks words" in sentence]
        assert bool(missing) != met["must"]
        assert all(any(word in sentence for word in query.constraints["must"]) for sentence in missing)
    assert domain.contradictions(Query("q", "writing", "poem", language, "Write a poem."), text) == []
