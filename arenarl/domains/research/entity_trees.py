"""Entity trees and the sub-trees that questions are made of (3.1 and Algorithm 1, InfoAgent).

The paper finds children by named-entity recognition in a node's facts. Here a relation says whom it names, and children
may also come from pages that name the node: a question over such an edge cannot be answered from the root's page alone.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from arenarl.domains.research.corpus import Corpus
from arenarl.domains.research.entities import Fact


@dataclass(frozen=True)
class Node:
    url: str
    parent: int | None  # place in the tree's list; None is the root's
    link: Fact | None = None  # the relation by which it hangs at its parent, on the page of either


def grow_tree(corpus: Corpus, root: str, branching: Sequence[int], rng: random.Random) -> list[Node]:
    """The tree below `root`, breadth first: a node of depth d has at most `branching[d]` children,
    and no entity is in it twice."""
    tree, level = [Node(root, None)], [0]
    taken = {root}
    for most in branching:
        below = []
        for parent in level:
            links = [fact for fact in corpus.links(tree[parent].url) if other_end(fact, tree[parent].url) not in taken]
            rng.shuffle(links)
            for link in links:
                child = other_end(link, tree[parent].url)
                if child not in taken and sum(tree[index].parent == parent for index in below) < most:
                    taken.add(child)
                    below.append(len(tree))
                    tree.append(Node(child, parent, link))
        level = below
    return tree


def other_end(link: Fact, url: str) -> str:
    """Of a relation's two entities the one that is not `url`."""
    return link.target if link.url == url else link.url


def extract_subtree(parents: Sequence[int | None], budget: int, rng: random.Random) -> set[int]:
    """The nodes of a random sub-tree with the same root: nodes are drawn, each taken with its whole path to the root if
    the budget has room for what is new of it. Algorithm 1, InfoAgent.

    >>> sorted(extract_subtree([None, 0, 1, 2], budget=3, rng=random.Random(0)))
    [0, 1, 2]
    """
    budget = min(budget, len(parents))
    chosen: set[int] = set()
    while budget > 0:
        path: set[int] = set()
        node: int | None = rng.randrange(len(parents))
        while node is not None and node not in path:
            path.add(node)
            node = parents[node]
        cost = len(path - chosen)
        if 0 < cost <= budget:
            chosen |= path
            budget -= cost
    return chosen
