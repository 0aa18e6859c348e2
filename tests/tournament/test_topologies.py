"""What holds for every topology at every size: promises, bounds, symmetry, and failures."""

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
GIVE_THE_TRUE_ORDER = ["round_robin", "anchor", SEEDED]
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
}
MOST_MATCHES = MATCHES | {SEEDED: lambda n: 2 * n - 2, "double_elimination": lambda n: 2 * n - 2}

each_topology = pytest.mark.parametrize("topology", TOPOLOGIES)


def at_every_size(check):
    """`check(topology, size, seed)` at every size from 1 to 17, with six seeds each."""

    def checked(topology, seed):
        for size in range(1, 18):
            check(topology, size, seed)

    checked.__name__, checked.__doc__ = check.__name__, check.__doc__
    return settings(max_examples=6, deadline=None, derandomize=True)(given(seed=st.integers(0, 2**32))(checked))


def qualities_of(size, seed):
    return [10 * (k + 1) / size for k in Random(seed).sample(range(size), size)]


@pytest.mark.parametrize("topology", GIVE_THE_TRUE_BEST)
@at_every_size
def test_a_perfect_judge_puts_the_true_best_first_or_all_in_order(topology, size, seed):
    qualities = qualities_of(size, seed)
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
def test_midranks_sum_to_those_of_a_permutation(topology, size, seed):
    for ranking in TOPOLOGIES[topology].rankings:
        coarse = Random(seed).choices([4, 5, 6], k=size)
        ranks = run_tournament(topology, size, perfect(coarse), seed=seed, ranking=ranking).ranks_G
        assert sum(ranks) == size * (size - 1) / 2


@each_topology
@at_every_size
def test_relabelling_trajectories_relabels_ranks_if_the_lots_are_relabelled_too(topology, size, seed):
    """Round robin and anchor draw no lots; the anchor keeps its place where there is one."""
    names = Random(seed).sample(range(size), size)
    if topology in HAVE_AN_ANCHOR:
        names = [0, *(name for name in names if name)]
    lots = build_topology(topology, size, seed).lots
    relabelled_lots = [names.index(name) for name in lots]
    if topology in ("round_robin", "anchor"):
        relabelled_lots = None
    relabelled = type("Relabelled", (TOPOLOGIES[topology],), {"lots": relabelled_lots})
    expected = run_tournament(topology, size, noisy(range(size), seed), seed=seed)
    with patch.dict(TOPOLOGIES, {topology: relabelled}):
        ranking = run_tournament(topology, size, noisy(names, seed), seed=seed)
    assert ranking.ranks_G == [expected.ranks_G[name] for name in names]
    assert {frozenset((names[match.i], names[match.j])) for match in ranking.matches} == {
        frozenset((match.i, match.j)) for match in expected.matches
    }


@pytest.mark.parametrize(
    "topology", ["single_elimination", "double_elimination", "swiss", "balanced", "elo", "random_reference"]
)
def test_another_seed_draws_other_lots(topology):
    drawn = {
        tuple((match.i, match.j) for match in run_tournament(topology, 8, noisy(range(8)), seed=seed).matches)
        for seed in range(10)
    }
    assert len(drawn) > 5


@each_topology
@at_every_size
def test_verdicts_that_all_tie_give_one_shared_midrank_whatever_their_level(topology, size, seed):
    async def compare(i, j):
        level = Random(f"{seed} {i} {j}").uniform(0, 10)
        return level, level

    ranking = run_tournament(topology, size, compare, seed=seed)
    assert ranking.ranks_G == [(size - 1) / 2] * size


@each_topology
@at_every_size
def test_failures_at_random_fail_their_matches_and_nothing_else(topology, size, seed):
    failure_rate = Random(seed).choice([0.1, 0.3, 0.6])
    ranking = run_tournament(topology, size, noisy(range(size), seed, failure_rate), seed=seed)
    has_verdict = {i for match in ranking.matches if match.scores for i in (match.i, match.j)}
    assert all((match.scores is None) == any(call.error for call in match.calls) for match in ranking.matches)
    assert len(ranking.matches) <= MOST_MATCHES[topology](size)
    ranked = {g for g in range(size) if ranking.ranks_G[g] is not None}
    if size > 1:
        assert ranked == has_verdict
        in_group = [rank for rank in ranking.ranks_G if rank is not None]
        assert sum(in_group) == len(in_group) * (len(in_group) - 1) / 2
    if topology in MATCHES:
        assert len(ranking.matches) == MATCHES[topology](size)


@each_topology
@at_every_size
def test_the_order_in_which_verdicts_arrive_decides_nothing(topology, size, seed):
    def delayed(lots):
        judge = noisy(range(size), seed)

        async def compare(i, j):
            for _ in range(lots.randrange(5)):
                await asyncio.sleep(0)
            return await judge(i, j)

        return compare

    assert run_tournament(topology, size, delayed(Random(1)), seed=seed) == run_tournament(
        topology, size, delayed(Random(2)), seed=seed
    )


@each_topology
def test_ready_names_nothing_that_has_a_result_and_needs_no_memory(topology):
    """A schedule built anew goes on where another stopped."""
    results, named = {}, []
    while pairings := build_topology(topology, 9, 5).ready(results):
        named += pairings
        for i, j, _ in pairings:
            assert (i, j) not in results
            results[i, j], results[j, i] = (9 - i, 9 - j), (9 - j, 9 - i)
    ranking = asyncio.run(play_tournament(topology, 9, perfect([9 - i for i in range(9)]), seed=5))
    assert {frozenset(pairing[:2]) for pairing in named} == {frozenset((match.i, match.j)) for match in ranking.matches}


@pytest.mark.parametrize(("topology", "keys", "problem"), [
    ("roundrobin", {}, "did you mean 'round_robin'"),
    ("round_robin", {"placement": "x"}, "no parameter placement; .*none"),
    (SEEDED, {"acumulate": "sum"}, "no parameter acumulate; it has: accumulate, placement"),
    (SEEDED, {"placement": "algoritm_1"}, "did you mean 'algorithm1'"),
    ("elo", {"elo_estimate": "bradley"}, "did you mean 'bradley_terry'"),
    ("balanced", {"ranking": "bracket"}, "unknown ranking of balanced 'bracket'; did you mean 'scores'"),
])  # fmt: skip
def test_unknown_names_and_values_are_answered_with_the_valid_ones(topology, keys, problem):
    with pytest.raises(ValueError, match=problem):
        run_tournament(topology, 4, perfect([1, 2, 3, 4]), **keys)
