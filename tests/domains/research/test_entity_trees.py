"""Entity trees (Eq. 1) and Algorithm 1's sub-trees, InfoAgent."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arenarl.domains.research.corpus import build_corpus
from arenarl.domains.research.questions import extract_subtree, grow_tree, other_end


class Drawn:
    """A random source that draws these nodes, and no more."""

    def __init__(self, *nodes):
        self.nodes = list(nodes)

    def randrange(self, stop):
        return self.nodes.pop(0)


# The tree of the worked examples: 0 is the root, 1 and 2 its children, 3 and 4 those of 1, 5 the child of 3.
PARENTS = [None, 0, 0, 1, 1, 3]


@pytest.mark.parametrize(
    ("budget", "drawn", "chosen"),
    [
        (4, [5], {0, 1, 3, 5}),  # the path 5-3-1-0 costs 4: all of the budget
        (3, [5, 3], {0, 1, 3}),  # 4 is more than 3 and refused; then 3-1-0
        (3, [4, 4, 2, 2], {0, 1, 4}),  # 4-1-0 costs 3; nothing is left
        (4, [2, 2, 3], {0, 1, 2, 3}),  # 2-0 costs 2; again, 0 and refused; 3-1 costs 2, its root is there already
        # 2-0 costs 2, one is left: 5 costs 3, 3 costs 2, 4 costs 2, all refused; 1 costs 1
        (3, [2, 5, 3, 4, 1], {0, 1, 2}),
        (1, [4, 0], {0}),
        (99, [5, 4, 2], {0, 1, 2, 3, 4, 5}),  # the budget is capped by the number of nodes
    ],
)
def test_the_budget_rule_on_worked_examples(budget, drawn, chosen):
    source = Drawn(*drawn)
    assert extract_subtree(PARENTS, budget, source) == chosen
    assert source.nodes == [] or sum(1 for _ in source.nodes) < len(drawn)


@given(st.integers(0, 10**6), st.integers(1, 14), st.integers(1, 20))
def test_a_subtree_spends_its_budget_and_is_closed_under_parents(seed, size, budget):
    rng = random.Random(seed)
    parents = [None, *(rng.randrange(node) for node in range(1, size))]
    chosen = extract_subtree(parents, budget, rng)
    assert len(chosen) == min(budget, size) and 0 in chosen
    assert all(parents[node] is None or parents[node] in chosen for node in chosen)


def test_a_tree_keeps_to_its_branching_names_nobody_twice_and_hangs_by_facts_of_either_page():
    corpus = build_corpus(0)
    has_both = set()
    for page in corpus.pages[:60]:
        tree = grow_tree(corpus, page.url, [3, 2, 1], random.Random(page.url))
        assert (
            tree[0].url == page.url and tree[0].parent is None and len({node.url for node in tree}) == len(tree) <= 16
        )
        depth = {0: 0}
        for index, node in enumerate(tree[1:], start=1):
            parent = tree[node.parent].url
            depth[index] = depth[node.parent] + 1
            assert {node.link.url, node.link.target} == {parent, node.url} and other_end(node.link, parent) == node.url
            assert node.link in corpus.entities[node.link.url].facts
            has_both.add(node.link.url == parent)
        for index in depth:
            assert sum(node.parent == index for node in tree) <= (3, 2, 1, 0)[depth[index]]
        assert list(depth.values()) == sorted(depth.values())  # breadth first
    assert has_both == {True, False}
