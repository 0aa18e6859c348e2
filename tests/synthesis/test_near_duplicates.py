"""Near-duplicates: the lookup equals a comparison with every text."""

import random

import pytest
from hypothesis import given, settings
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


@settings(deadline=None)
@given(TEXTS, TEXT, st.sampled_from([0.05, 0.3, 0.5, 0.8, 1.0]))
def test_the_most_similar_text_is_found_and_none_below_the_threshold(texts, text, threshold):
    share, nearest = max(((similarity(other, text), other) for other in texts), default=(0.0, ""))
    expected = (nearest, round(share, 2)) if share >= threshold else None
    assert near_duplicates(threshold, *texts).nearest(text) == expected


def test_no_pair_just_above_the_threshold_is_missed():
    """Long texts with changed words: MinHash at a lower threshold missed one in ten."""
    rng = random.Random(0)
    for threshold in (0.6, 0.7, 0.8):
        near = 0
        for _ in range(300):
            words = [f"w{rng.randrange(5000)}" for _ in range(rng.randint(8, 40))]
            changed = " ".join(f"w{rng.randrange(5000)}" if rng.random() < 0.1 else word for word in words)
            is_near = threshold <= similarity(" ".join(words), changed)
            near += is_near
            assert is_near == (near_duplicates(threshold, " ".join(words)).nearest(changed) is not None)
        assert near > 50


@pytest.mark.parametrize("language", ["en", "zh"])
def test_few_pairs_are_compared_although_all_texts_share_words(language):
    """Frequent words make no candidates: a shared template alone is not compared."""
    near, compared, matches, taken = NearDuplicates(0.8), 0, 0, set()
    candidates = near._candidates

    def count(parts):
        nonlocal compared
        for candidate in candidates(parts):
            compared += 1
            yield candidate

    near._candidates = count
    world = build_world(0)
    texts = [query.query for name in SUBTASKS for query in make_queries(world, name, language, 400, "test", taken)]
    random.Random(0).shuffle(texts)
    for text in texts:
        if near.nearest(text):
            matches += 1
        else:
            near.add(text)
    assert matches > 20
    assert compared <= 5 * matches


def test_a_query_is_found_by_other_wordings_but_not_by_another_query():
    english = "Find a quiet restaurant within 2 km of Lotus Park in Beijing, at most 80 yuan."
    near = near_duplicates(0.7, english, "请在北京莲花公园附近2公里内找一家适合安静的餐厅，人均不超过80元。")
    assert near.nearest(f"plz {english.lower()}")
    assert near.nearest("请在北京莲花公园附近2公里内找一家安静的餐厅，人均不超过80元。谢谢")
    assert near.nearest("Find a family museum within 5 km of Jade Hotel in Chengdu, open at 20:00.") is None
    assert near.nearest("请比较2026-05-03从成都到西安的飞机和火车，要最便宜。") is None
