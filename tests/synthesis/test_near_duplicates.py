"""Near duplicates: what is found is what a comparison with every text finds."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.synthesis.near_duplicates import NearDuplicates, shingles

WORDS = st.lists(
    st.sampled_from("find a quiet park cafe near lotus square in beijing today 公 园".split()), min_size=1, max_size=12
).map(" ".join)


def similarity(one, other):
    return len(shingles(one) & shingles(other)) / len(shingles(one) | shingles(other))


@settings(deadline=None)
@given(
    st.lists(WORDS | st.sampled_from(["", "?", "!"]), max_size=20), WORDS, st.sampled_from([0.05, 0.3, 0.5, 0.8, 1.0])
)
def test_the_most_similar_text_is_found_and_none_below_the_threshold(texts, text, threshold):
    taken = NearDuplicates(threshold)
    for one in texts:
        taken.add(one)
    share, nearest = max(((similarity(one, text), one) for one in texts), default=(0.0, ""))
    assert taken.nearest(text) == ((nearest, round(share, 2)) if share >= threshold else None)


def test_no_pair_just_above_the_threshold_is_missed():
    """Of long texts with some words changed, MinHash at a lower threshold missed one in ten."""
    rng = random.Random(0)
    for threshold in (0.6, 0.7, 0.8):
        near = 0
        for _ in range(300):
            words = [f"w{rng.randrange(5000)}" for _ in range(rng.randint(8, 40))]
            changed = [f"w{rng.randrange(5000)}" if rng.random() < 0.1 else word for word in words]
            taken = NearDuplicates(threshold)
            taken.add(" ".join(words))
            is_near = threshold <= similarity(" ".join(words), " ".join(changed))
            near += is_near
            assert is_near == (taken.nearest(" ".join(changed)) is not None)
        assert near > 50


def test_a_changed_word_or_courtesy_is_found_and_another_query_is_not():
    taken = NearDuplicates(0.7)
    taken.add("Find a quiet restaurant within 2 km of Lotus Park in Beijing, at most 80 yuan.")
    taken.add("请在北京莲花公园附近2公里内找一家适合安静的餐厅，人均不超过80元。")
    assert taken.nearest("plz find a quiet restaurant within 2 km of Lotus Park in Beijing, at most 80 yuan")
    assert taken.nearest("请在北京莲花公园附近2公里内找一家安静的餐厅，人均不超过80元。谢谢")
    assert taken.nearest("Find a family museum within 5 km of Jade Hotel in Chengdu, open at 20:00.") is None
    assert taken.nearest("请比较2026-05-03从成都到西安的飞机和火车，要最便宜。") is None
