"""Near duplicates: MinHash may only find candidates, the count decides."""

from hypothesis import given
from hypothesis import strategies as st

from arenarl.synthesis.near_duplicates import NearDuplicates, shingles, similarity

WORDS = st.lists(st.sampled_from("find a quiet park cafe near lotus square in beijing today 公 园".split()), min_size=1, max_size=12).map(" ".join)


@given(st.lists(WORDS, max_size=20), WORDS, st.sampled_from([0.3, 0.5, 0.8, 1.0]))
def test_what_is_found_is_as_similar_as_it_says(texts, text, threshold):
    taken = NearDuplicates(threshold)
    for one in texts:
        taken.add(one)
    found = taken.nearest(text)
    if found:
        assert found[0] in texts and found[1] >= round(threshold, 2) and found[1] == round(similarity(shingles(found[0]), shingles(text)), 2)
    if text in texts:
        assert found and found[1] == 1


@given(WORDS, WORDS)
def test_likeness_goes_both_ways(one, other):
    share = similarity(shingles(one), shingles(other))
    assert share == similarity(shingles(other), shingles(one)) and 0 <= share <= 1


def test_a_changed_word_or_courtesy_is_found_and_another_query_is_not():
    taken = NearDuplicates(0.7)
    taken.add("Find a quiet restaurant within 2 km of Lotus Park in Beijing, at most 80 yuan.")
    taken.add("请在北京莲花公园附近2公里内找一家适合安静的餐厅，人均不超过80元。")
    assert taken.nearest("plz find a quiet restaurant within 2 km of Lotus Park in Beijing, at most 80 yuan")
    assert taken.nearest("请在北京莲花公园附近2公里内找一家安静的餐厅，人均不超过80元。谢谢")
    assert taken.nearest("Find a family museum within 5 km of Jade Hotel in Chengdu, open at 20:00.") is None
    assert taken.nearest("请比较2026-05-03从成都到西安的飞机和火车，要最便宜。") is None
