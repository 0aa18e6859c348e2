"""Facts made vague (Eq. 2, InfoAgent): the words hide the value, and the range contains it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arenarl.domains.research.corpus import build_corpus
from arenarl.domains.research.facts import Entity, Fact, fuzzify, fuzzy_number, fuzzy_static, fuzzy_year, pattern_of

SUBJECT, OBJECT = "<subject>", "<object>"


@given(st.integers(1000, 2099))
def test_a_year_becomes_a_third_or_the_whole_of_its_decade(year):
    decade, third = year - year % 10, "early " if year % 10 < 4 else "mid-" if year % 10 < 7 else "late "
    fuzzy = [fuzzy_year(year, random.Random(seed)) for seed in range(20)]
    assert {words for words, _, _ in fuzzy} == {f"the {third}{decade}s", f"the {decade}s"}
    assert all(decade <= low <= year <= high <= decade + 9 for _, low, high in fuzzy)


@given(st.integers(0, 10**7), st.integers(0, 1000))
def test_a_number_is_in_its_range_and_equal_words_mean_equal_ranges(number, offset):
    (words, low, high), other = fuzzy_number(number), number + offset
    assert low <= number <= high and (number < 10 or str(number) != words.replace("around ", "") or number % 10 == 0)
    if fuzzy_number(other)[0] == words and len(str(number)) == len(str(other)):
        assert fuzzy_number(other) == (words, low, high)


@pytest.mark.parametrize(("text", "fuzzy"), [
    ("on May 3, 1841", "in the early 1840s"), ("in March 1841", "in the early 1840s"),
    ("from 1841 to 1849", "from the early 1840s to the late 1840s"),
    ("42 of 1,234 members", "around 40 of around 1,000 members"), ("1,841 seats", "around 2,000 seats"),
    ("no number", "no number"),
])  # fmt: skip
def test_dates_and_numbers_of_any_text_become_vague(text, fuzzy):
    assert fuzzy_static(text, random.Random(0)) == fuzzy


@given(st.integers(0, 10**7), st.integers(1000, 2099))
def test_a_number_before_a_year_becomes_vague_as_a_whole(number, year):
    vague = f"sold {fuzzy_number(number)[0]} {fuzzy_year(year, random.Random(0))[0]} models"
    assert fuzzy_static(f"sold {number:,} {year} models", random.Random(0)) == vague


def test_vague_facts_of_the_encyclopedia_have_no_names_and_no_exact_numbers():
    corpus, rng = build_corpus(0, 500), random.Random(0)
    for entity in corpus.entities.values():
        for fact in entity.facts:
            pattern = pattern_of(fact, entity)
            assert SUBJECT in pattern and (OBJECT in pattern) == bool(fact.target) and entity.name not in pattern
            if fact.target is None and fact.attribute != "type":
                clue = fuzzify(fact, entity, rng)
                assert clue.holds(fact) and entity.name not in clue.pattern and SUBJECT in clue.pattern
                assert fact.number is None or clue.low < clue.high


def test_other_names_are_hidden_pronouns_become_the_subject_and_only_the_facts_number_is_made_vague():
    facts = (
        Fact("u", "birth year", "1867", "She was born in 1867, a year after Pierre Curie moved."),
        Fact("u", "husband", "Pierre Curie", "Marie Curie married Pierre Curie in 1895.", "v"),
        Fact("u", "motto", "nothing", "In all that time nothing was feared."),
    )
    entity = Entity("u", "Marie Curie", "physicist", facts)
    pattern = fuzzify(facts[0], entity, random.Random(0)).pattern
    assert pattern == "<subject> was born in the late 1860s, a year after someone or something else moved."
    assert pattern_of(facts[1], entity) == "<subject> married <object> in 1895."
    assert pattern_of(facts[2], entity) == "Of <subject> it is said: In all that time nothing was feared."
    fact = Fact("u", "lanes", "5", "Route 55 has 5 lanes.")
    pattern = fuzzify(fact, Entity("u", "Ann", "road", (fact,)), random.Random(0)).pattern
    assert pattern == "Of <subject> it is said: Route around 60 has 5 to 9 lanes."


@given(st.sampled_from(["14 March 1879", "42 km", "1,234 km or 12", "No. 7", "red"]), st.integers(0, 20))
def test_a_value_that_the_clue_keeps_is_kept_in_its_words(value, seed):
    """Otherwise several entities could fit the words, but only one the clue."""
    fact = Fact("u", "a", value, f"In 1902, one of 42, Ann had {value}, with 17 others by May 3, 1941.")
    clue = fuzzify(fact, Entity("u", "Ann", "writer", (fact,)), random.Random(seed))
    before, after = clue.pattern.split(value)
    assert clue.value == value and clue.low is None
    assert not any(number in before + after for number in ("1902", "42", "17", "1941"))
