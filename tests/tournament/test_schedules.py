"""Round robin, anchor and random reference worked by hand, and the pairs of `balanced`."""

from collections import Counter
from itertools import chain
from random import Random

import networkx
from judges import perfect, scripted

from arenarl.tournament.play import run_tournament
from arenarl.tournament.schedules import Balanced, circulant_pairs, parse_budget


def test_round_robin_and_anchor_score_the_matches_with_a_verdict():
    # Eq. 4 by hand: 0 beats 1, 0 and 2 draw, 2 beats 1: wins 1, 0, 1 of 2.
    scores = {(0, 1): (6, 5), (0, 2): (4, 4), (1, 2): (3, 9)}
    ranking = run_tournament("round_robin", 3, scripted(scores))
    assert (ranking.scores_G, ranking.ranks_G) == ([0.5, 0.0, 0.5], [0.5, 2.0, 0.5])
    assert run_tournament("round_robin", 3, scripted(scores, failed=[{0, 2}])).scores_G == [1.0, 0.0, 1.0]
    # Section 4.2 by hand, both orders summed: s_anc = (2*6 + 2*4 + 2*8) / 3 = 12, the others 10, 14, 12.
    ranking = run_tournament("anchor", 4, scripted({(0, 1): (6, 5), (0, 2): (4, 7), (0, 3): (8, 6)}))
    assert (ranking.scores_G, ranking.ranks_G) == ([12.0, 10.0, 14.0, 12.0], [1.5, 3.0, 0.0, 1.5])


def test_balanced_pairs_are_random_even_different_and_connected_at_every_size_and_budget():
    for size, seed in [(size, size % 3) for size in range(1, 18)]:
        for matches in range(size * (size - 1) // 2 + 1):
            pairs = circulant_pairs(size, matches, Random(seed))
            assert len({frozenset(pair) for pair in pairs}) == len(pairs) == matches
            degrees = Counter([*range(size), *chain.from_iterable(pairs)])  # every place once more
            assert max(degrees.values()) - min(degrees.values()) <= 1
            if matches >= size - 1:
                graph = networkx.Graph(pairs)
                graph.add_nodes_from(range(size))
                assert networkx.is_connected(graph)
    drawn = {frozenset(frozenset(pairing[:2]) for pairing in Balanced(16, seed).ready({})) for seed in range(20)}
    assert len(drawn) == 20
    # offset 1, then one of 2 … 7
    assert len({frozenset(circulant_pairs(16, 32, Random(seed))) for seed in range(50)}) >= 6


def test_a_budget_is_a_number_or_a_formula_in_the_entrants():
    assert [parse_budget(matches, 16) for matches in (20, "20", "n", "2n-2", "2n - 2", "n/2", "3n/2", "n+4", 999)] == [
        20, 20, 16, 30, 30, 8, 24, 20, 120,
    ]  # fmt: skip
    assert [parse_budget("2n-2", size) for size in (1, 2, 3)] == [0, 1, 3]


def test_only_the_outcome_against_the_reference_counts_which_the_seed_draws():
    qualities = [3, 9, 5, 5, 1]
    ranking = run_tournament("random_reference", 5, perfect(qualities), seed=2)
    (reference,) = set.intersection(*({match.i, match.j} for match in ranking.matches))
    expected = [float((quality > qualities[reference]) - (quality < qualities[reference])) for quality in qualities]
    assert ranking.scores_G == expected and expected[reference] == 0 and len(ranking.matches) == 4
    scores, references = {(i, j): (9 - i, 9 - j) for i in range(3) for j in range(i + 1, 3)}, set()
    for seed in range(30):
        ranking = run_tournament("random_reference", 3, scripted(scores, failed=[{0, 1}]), seed=seed)
        (reference,) = set.intersection(*({match.i, match.j} for match in ranking.matches))
        references.add(reference)
        assert (ranking.scores_G[1 - reference] is None) if reference < 2 else (None not in ranking.scores_G)
    assert references == {0, 1, 2}
