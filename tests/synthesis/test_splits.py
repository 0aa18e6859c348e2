"""Quotas and splits: counts follow the config, no query is in two splits, SFT has no held-out subtask."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from arenarl.config.schema import BuildConfig, DataConfig
from arenarl.synthesis.prompts import Cell
from arenarl.synthesis.splits import assign, quotas_of, shared_entities, without_leaks
from arenarl.trajectory import Query

SUBTASKS = ("Direction", "Search", "M-Day")


def queries(counts: dict[Cell, int]) -> list[Query]:
    numbered = [(cell, number) for cell, count in counts.items() for number in range(count)]
    named = [(f"{cell.subtask}-{cell.language}-{number}", cell) for cell, number in numbered]
    return [Query(name, "travel", cell.subtask, cell.language, f"query {name}") for name, cell in named]


@given(
    st.integers(1, 30), st.integers(1, 200), st.integers(1, 200), st.sampled_from([0.0, 0.25, 1.0]),
    st.sampled_from([["en"], ["en", "zh"]]),
)  # fmt: skip
def test_quotas_add_up_and_splits_are_disjoint(test, sft, rl, spare, languages):
    data = DataConfig(test_per_subtask=test, sft_size=sft, rl_size=rl)
    quotas = quotas_of(SUBTASKS, ("M-Day",), BuildConfig(spare=spare, languages=languages), data)
    assert (quotas["test"].total(), quotas["rl"].total()) == (3 * test, rl)
    assert sft <= quotas["sft"].total() <= sft * (1 + spare) + 1
    drawn = [(query, False) for query in queries(sum(quotas.values(), Counter()))]
    split_of = assign(drawn, quotas, seed=0)
    assigned = [query.query_id for members in split_of.values() for query in members]
    assert sorted(assigned) == sorted(query.query_id for query, _ in drawn)
    assert all(len(members) == quotas[name].total() for name, members in split_of.items())
    assert not any(query.subtask == "M-Day" for query in split_of["sft"])
    assert split_of == assign(drawn, quotas, seed=0)


def test_the_test_split_has_only_the_queries_written_for_it():
    data = DataConfig(test_per_subtask=2, sft_size=6, rl_size=6, language="en")
    quotas = quotas_of(SUBTASKS, (), BuildConfig(), data)
    drawn = queries({Cell(subtask, "en"): 6 for subtask in SUBTASKS})
    split_of = assign([(query, query.query_id.endswith("-0")) for query in drawn], quotas, seed=0)
    assert sorted(query.query_id for query in split_of["test"]) == ["Direction-en-0", "M-Day-en-0", "Search-en-0"]
    assert len(split_of["sft"]) == quotas["sft"].total() == len(drawn) - 3 - len(split_of["rl"])


def test_too_few_queries_leave_rl_short_first():
    data = DataConfig(test_per_subtask=2, sft_size=3, rl_size=4, language="en")
    quotas = quotas_of(("Search",), (), BuildConfig(spare=0), data)
    split_of = assign([(query, False) for query in queries({Cell("Search", "en"): 6})], quotas, seed=0)
    assert {name: len(members) for name, members in split_of.items()} == {"test": 2, "sft": 3, "rl": 1}


def test_a_leak_leaves_the_lower_split_and_is_named():
    text = "Find a quiet restaurant within 2 km of Lotus Park in Beijing, at most 80 yuan"
    texts = {"a": text, "b": f"{text}, please", "c": "Find a museum"}
    first, repeat, other = (Query(name, "travel", "Search", "en", query) for name, query in texts.items())
    kept, leaks = without_leaks({"test": [first], "rl": [repeat, other], "sft": [repeat]}, 0.8)
    assert kept == {"test": [first], "rl": [other], "sft": []}
    named = [(leak["split"], leak["query_id"], leak["like"]) for leak in leaks]
    assert named == [("rl", "b", text), ("sft", "b", text)]


def test_names_that_splits_share_are_counted():
    def query(name, **constraints):
        return Query(name, "travel", "Search", "en", name, constraints)

    test = [query("a", city="Beijing", near="Lotus Park"), query("b", city="Xian")]
    first = shared_entities({"test": test, "sft": [query("c", city="Beijing")], "rl": []})[0]
    assert first == {"split": "test", "with": "sft", "names": 3, "shared names": 1, "queries": 2, "with one": 1}
