"""Near-duplicates: the lookup equals a comparison with every text."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_few_pairs_are_compared_although_all_texts_share_words():
    """Each text has two of 40 names and two of 99 numbers; texts that differ in a single place are near-duplicates."""
    rng, near, compared = random.Random(0), NearDuplicates(0.8), Counter()
    candidates = near._candidates
    near._candidates = lambda parts: [compared.update(n=1) or other for other in candidates(parts)]
    for _ in range(2000):
        places, numbers = rng.sample(range(40), 2), rng.sample(range(99), 2)
        text = "Find trains from city{} to town{} for at most {} yuan that arrive before {} on a Monday"
        text = text.format(*places, *numbers)
        near.nearest(text) or near.add(text)
    assert compared["n"] <= 2 * 2000


def test_a_query_is_found_by_other_wordings_but_not_by_another_query():
    english = "Find a quiet restaurant within 2 km of Lotus Park in Beijing, at most 80 yuan."
    near = near_duplicates(0.7, english, "请在北京莲花公园附近2公里内找一家适合安静的餐厅，人均不超过80元。")
    assert near.nearest(f"plz {english.lower()}")
    assert near.nearest("请在北京莲花公园附近2公里内找一家安静的餐厅，人均不超过80元。谢谢")
    assert near.nearest("Find a family museum within 5 km of Jade Hotel in Chengdu, open at 20:00.") is None
    assert near.nearest("请比较2026-05-03从成都到西安的飞机和火车，要最便宜。") is None
