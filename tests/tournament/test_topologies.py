"""Properties of every topology at every size: promises, bounds, symmetry, failures."""

import asyncio
from collections import Counter
from math import ceil, log2
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judges import noisy, perfect

from arenarl.tournament.play import play_tournament, run_tournament
from arenarl.tournament.topologies import TOPOLOGIES, build_topology

SEEDED = "seeded_single_elimination"
GIVE_THE_TRUE_ORDER = ["round_robin", "anchor", "dgr", SEEDED]
GIVE_THE_TRUE_BEST = [*GIVE_THE_TRUE_ORDER, "single_elimination", "double_elimination", "swiss"]
HAVE_AN_ANCHOR = ["anchor", SEEDED]
MATCHES = {
    "round_robin": lambda n: n * (n - 1) // 2,
    "anchor": lambda n: n - 1,
    "single_elimination": lambda n: n - 1,
    "swiss": lambda n: (n - 1).bit_length() * (n // 2),
    "balanced": lambda n: min(2 * n - 2, n * (n - 1) // 2),
    "elo": lambda n: min(ceil(n * log2(n)), n * (n - 1) // 2),
    "random_reference": lambda n: n - 1,
    "circular": lambda n: n if n > 2 else n - 1,
    "dgr": lambda n: n * (n - 1) // 2,
}
MOST_MATCHES = MATCHES | {SEEDED: lambda n: 2 * n - 2, "double_elimination": lambda n: 2 * n - 2}

each_topology = pytest.mark.parametrize("topology", TOPOLOGIES)


def at_every_size(check):
    """`check(topology, size, seed)` at every size from 1 to 17, with three seeds each."""

    def checked(topology, seed):
        for size in range(1, 18):
            check(topology, size, seed)

    checked.__name__, checked.__doc__ = check.__name__, check.__doc__
    return settings(max_examples=3)(given(seed=st.integers(0, 2**32))(checked))


@pytest.mark.parametrize("topology", GIVE_THE_TRUE_BEST)
@at_every_size
def test_a_perfect_judge_puts_the_true_best_first_or_all_in_order(topology, size, seed):
    qualities = [10 * (k + 1) / size for k in Random(seed).sample(range(size), size)]
    ranks = run_tournament(topology, size, perfect(qualities), seed=seed).ranks_G
    assert ranks.index(0.0) == qualities.index(max(qualities))
    if topology in GIVE_THE_TRUE_ORDER:
        assert ranks == [float(sum(other > quality for other in qualities)) for quality in qualities]


@each_topology
@at_every_size
def test_no_pair_is_judged_twice_and_matches_stay_within_the_formula(topology, size, seed):
    ranking = run_tournament(topology, size, noisy(range(size), seed), seed=seed)
    pairs = Counter(frozenset((match.i, match.j)) for match in ranking.matches)
    assert set(pairs.values()) <= {1}
    assert len(pairs) <= MOST_MATCHES[topology](size)
    if topology in MATCHES:
        assert len(pairs) == MATCHES[topology](size)


@each_topology
@at_every_size
def test_midranks_sum_to_those_of_a_permutation_and_are_equal_if_all_verdicts_are_ties(topology, size, seed):
    for ranking in TOPOLOGIES[topology].rankings:
        coarse = Random(seed).choices([4, 5, 6], k=size)
        ranks = run_tournament(topology, size, perfect(coarse), seed=seed, ranking=ranking).ranks_G
        assert sum(ranks) == size * (size - 1) / 2

    async def compare(i, j):
        level = Random(f"{seed} {i} {j}").uniform(0, 10)
        return level, level

    ranking = run_tournament(topology, size, compare, seed=seed)
    assert ranking.ranks_G == [(size - 1) / 2] * size


@each_topology
@at_every_size
def test_relabelled_trajectories_get_relabelled_ranks_if_the_random_order_is_relabelled_too(topology, size, seed):
    """Round robin and anchor use no random order. An anchor keeps its index."""
    names = Random(seed).sample(range(size), size)
    if topology in HAVE_AN_ANCHOR:
        names = [0, *(name for name in names if name)]
    lots = [names.index(name) for name in build_topology(topology, size, seed).lots]
    lots = None if topology in ("round_robin", "anchor") else lots
    relabelled = type("Relabelled", (TOPOLOGIES[topology],), {"lots": lots})
    expected = run_tournament(topology, size, noisy(range(size), seed), seed=seed)
    with patch.dict(TOPOLOGIES, {topology: relabelled}):
        ranking = run_tournament(topology, size, noisy(names, seed), seed=seed)
    assert ranking.ranks_G == [expected.ranks_G[name] for name in names]
    pairs = {frozenset((names[match.i], names[match.j])) for match in ranking.matches}
    assert pairs == {frozenset((match.i, match.j)) for match in expected.matches}


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES.keys() - {"round_robin", "dgr", *HAVE_AN_ANCHOR}))
def test_another_seed_draws_another_random_order(topology):
    rankings = [run_tournament(topology, 8, noisy(range(8)), seed=seed) for seed in range(10)]
    assert len({tuple((match.i, match.j) for match in ranking.matches) for ranking in rankings}) > 5


@each_topology
@at_every_size
def test_random_failures_fail_only_their_own_matches(topology, size, seed):
    failure_rate = Random(seed).choice([0.1, 0.3, 0.6])
    ranking = run_tournament(topology, size, noisy(range(size), seed, failure_rate), seed=seed)
    has_verdict = {i for match in ranking.matches if match.scores for i in (match.i, match.j)}
    assert all((match.scores is None) == any(call.error for call in match.calls) for match in ranking.matches)
    assert len(ranking.matches) <= MOST_MATCHES[topology](size)
    ranks = {g: rank for g, rank in enumerate(ranking.ranks_G) if rank is not None}
    if size > 1:
        assert ranks.keys() == has_verdict and sum(ranks.values()) == len(ranks) * (len(ranks) - 1) / 2
    if topology in MATCHES:
        assert len(ranking.matches) == MATCHES[topology](size)


@each_topology
@at_every_size
def test_the_order_of_arrival_of_verdicts_changes_nothing(topology, size, seed):
    def rank(rng):
        async def compare(i, j):
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)
            return await noisy(range(size), seed)(i, j)

        return run_tournament(topology, size, compare, seed=seed)

    assert rank(Random(1)) == rank(Random(2))


@each_topology
def test_ready_depends_only_on_the_results_and_returns_no_match_with_a_result(topology):
    """A new schedule continues where another one stopped."""
    results, ready = {}, []
    while pairings := build_topology(topology, 9, 5).ready(results):
        ready += pairings
        for i, j, _ in pairings:
            assert (i, j) not in results
            results[i, j], results[j, i] = (9 - i, 9 - j), (9 - j, 9 - i)
    ranking = asyncio.run(play_tournament(topology, 9, perfect([9 - i for i in range(9)]), seed=5))
    assert {frozenset(pairing[:2]) for pairing in ready} == {frozenset((match.i, match.j)) for match in ranking.matches}


@pytest.mark.parametrize(("topology", "keys", "problem"), [
    ("roundrobin", {}, "did you mean 'round_robin'"),
    ("round_robin", {"placement": "x"}, "no parameter placement; .*none"),
    (SEEDED, {"acumulate": "sum"}, "no parameter acumulate; it has: accumulate, placement"),
    (SEEDED, {"placement": "algoritm_1"}, "did you mean 'algorithm1'"),
    ("elo", {"elo_estimate": "bradley"}, "did you mean 'bradley_terry'"),
    ("balanced", {"ranking": "bracket"}, "unknown ranking of balanced 'bracket'; did you mean 'scores'"),
    ("swiss", {"size": 3}, "no parameter size; .*none"), ("group_stage", {"members": 3}, "no parameter members"),
    ("group_stage", {"matches": 3}, "no parameter matches; it has: repeats, group"),
    ("group_stage", {"ranking": "scores"}, "ranking of group_stage"),
])  # fmt: skip
def test_errors_of_unknown_names_and_values_list_the_valid_ones(topology, keys, problem):
    with pytest.raises(ValueError, match=problem):
        run_tournament(topology, 4, perfect([1, 2, 3, 4]), **keys)
