"""Near-duplicates: the lookup equals a comparison with every text."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arenarl.domains.travel.queries import SUBTASKS, make_queries
from arenarl.domains.travel.world import build_world
from arenarl.synthesis.near_duplicates import NearDuplicates, shingles

TOKENS = st.sampled_from("find a quiet park cafe near lotus square in beijing today 公 园".split())
TEXT = st.lists(TOKENS, min_size=1, max_size=12).map(" ".join)
TEXTS = st.lists(TEXT | st.sampled_from(["", "?", "!"]), max_size=20)


def similarity(first, second):
    return len(shingles(first) & shingles(second)) / len(shingles(first) | shingles(second))


def near_duplicates(threshold, *texts):
    near = NearDuplicates(threshold)
    for text in texts:
        near.add(text)
    return near


@given(TEXTS, TEXT, st.sampled_from([0.05, 0.3, 0.5, 0.8, 1.0]))
def test_the_most_similar_text_is_found_and_none_below_the_threshold(texts, text, threshold):
    share, nearest = max(((similarity(other, text), other) for other in texts), default=(0.0, ""))
    expected = (nearest, round(share, 2)) if share >= threshold else None
    assert near_duplicates(threshold, *texts).nearest(text) == expected


@pytest.mark.parametrize("language", ["en", "zh"])
def test_few_pairs_are_compared_although_all_texts_share_words(language):
    """Frequent words make no candidates: a shared template alone is not compared."""
    near, compared, matches, taken = NearDuplicates(0.8), [], 0, set()
    candidates = near._candidates

    def kept(parts):
        found = list(candidates(parts))
        compared.extend(found)
        return found

    near._candidates = kept
    world = build_world(0)
    texts = [query.query for name in SUBTASKS for query in make_queries(world, name, language, 400, "test", taken)]
    random.Random(0).shuffle(texts)
    for text in texts:
        if near.nearest(text):
            matches += 1
        else:
            near.add(text)
    assert matches > 20 and len(compared) <= 5 * matches


def test_a_query_is_found_by_other_wordings_but_not_by_another_query():
    english = "Find a quiet restaurant within 2 km of Lotus Park in Beijing, at most 80 yuan."
    near = near_duplicates(0.7, english, "请在北京莲花公园附近2公里内找一家适合安静的餐厅，人均不超过80元。")
    assert near.nearest(f"plz {english.lower()}")
    assert near.nearest("请在北京莲花公园附近2公里内找一家安静的餐厅，人均不超过80元。谢谢")
    assert near.nearest("Find a family museum within 5 km of Jade Hotel in Chengdu, open at 20:00.") is None
    assert near.nearest("请比较2026-05-03从成都到西安的飞机和火车，要最便宜。") is None
