import asyncio
from collections import Counter
from itertools import combinations
from random import Random

import pytest

from arenarl.topologies import TOPOLOGIES, build_topology, standard_placement
from arenarl.tournament import play_tournament, run_tournament

SIZES = range(2, 18)
SEEDED = "seeded_single_elimination"
MOST_MATCHES = {
    "round_robin": lambda n: n * (n - 1) // 2,
    "anchor": lambda n: n - 1,
    SEEDED: lambda n: 2 * n - 2,
}
each_topology = pytest.mark.parametrize("topology", TOPOLOGIES)
each_size = pytest.mark.parametrize("size", SIZES)


def perfect(qualities):
    """A judge whose scores are the qualities."""

    async def compare(i, j):
        return qualities[i], qualities[j]

    return compare


def scripted(half_scores, failed=()):
    """A judge that gives each pair the same scores in both orders and no verdict on the pairs in `failed`."""

    async def compare(i, j):
        if {i, j} in failed:
            return None
        return half_scores[i, j] if (i, j) in half_scores else half_scores[j, i][::-1]

    return compare


def noisy(name_of, seed=0):
    """A judge with intransitive scores that depend on the trajectories' names only, not on their indices."""

    async def compare(i, j):
        pair = Random(f"{seed} {name_of[i]} {name_of[j]}")
        return pair.uniform(0, 10), pair.uniform(0, 10)

    return compare


def shuffled(size, seed=0):
    qualities = [10.0 * (k + 1) / size for k in range(size)]
    Random(seed).shuffle(qualities)
    return qualities


def true_ranks(qualities):
    return [float(sum(other > quality for other in qualities)) for quality in qualities]


@each_topology
@each_size
def test_a_perfect_judge_recovers_the_order(topology, size):
    for seed in range(5):
        qualities = shuffled(size, seed)
        assert run_tournament(topology, size, perfect(qualities)).ranks_G == true_ranks(qualities)


@each_topology
@each_size
def test_no_pair_is_judged_twice_and_matches_stay_within_the_formula(topology, size):
    for seed in range(5):
        ranking = run_tournament(topology, size, noisy(range(size), seed))
        pairs = Counter(frozenset((match.i, match.j)) for match in ranking.matches)
        assert max(pairs.values()) == 1
        assert len(pairs) <= MOST_MATCHES[topology](size)
        if topology != SEEDED:
            assert len(pairs) == MOST_MATCHES[topology](size)


@each_size
def test_the_bracket_saves_exactly_the_matches_of_the_anchor(size):
    ranking = run_tournament(SEEDED, size, noisy(range(size)))
    bracket = [match for match in ranking.matches if match.round > 0]
    assert not any(0 in (match.i, match.j) for match in bracket)
    assert size - 1 <= len(ranking.matches) < 2 * size - 2  # the anchor plays at least one bracket match


@each_topology
@each_size
def test_ranks_are_a_permutation_up_to_midranks(topology, size):
    ranks = run_tournament(topology, size, noisy(range(size))).ranks_G
    assert sum(ranks) == size * (size - 1) / 2


@each_topology
@each_size
def test_relabelling_trajectories_relabels_ranks(topology, size):
    names = list(range(size))
    ranks = run_tournament(topology, size, noisy(names)).ranks_G
    for seed in range(3):
        relabelled = names[:1] + Random(seed).sample(names[1:], size - 1)
        expected = [ranks[name] for name in relabelled]
        assert run_tournament(topology, size, noisy(relabelled)).ranks_G == expected


@each_topology
@each_size
def test_verdicts_that_all_tie_give_one_shared_midrank(topology, size):
    ranking = run_tournament(topology, size, perfect([7.1] * size), seed=size)
    assert ranking.ranks_G == [(size - 1) / 2] * size
    assert ranking.tie_rate == 1


@each_topology
def test_the_same_seed_plays_the_same_tournament(topology):
    coarse = [7, 7, 7, 8, 8, 8, 9, 9, 9]
    first, second = (run_tournament(topology, 9, perfect(coarse), seed=3) for _ in range(2))
    assert first == second


def test_round_robin_scores_the_share_of_wins_and_a_draw_is_none():
    # Eq. 4 by hand: 0 beats 1, 0 and 2 draw, 2 beats 1: wins 1, 0, 1 of 2.
    ranking = run_tournament("round_robin", 3, scripted({(0, 1): (6, 5), (0, 2): (4, 4), (1, 2): (3, 9)}))
    assert ranking.scores_G == [0.5, 0.0, 0.5]
    assert ranking.ranks_G == [0.5, 2.0, 0.5]


def test_round_robin_takes_the_share_over_matches_with_a_verdict():
    scores = {(0, 1): (6, 5), (0, 2): (8, 4), (1, 2): (3, 9)}
    ranking = run_tournament("round_robin", 3, scripted(scores, failed=[{0, 2}]))
    assert ranking.scores_G == [1.0, 0.0, 1.0]


def test_the_anchor_scores_the_mean_of_its_matches():
    # Section 4.2 by hand, both orders summed: s_anc = (2*6 + 2*4 + 2*8) / 3 = 12, the others 10, 14, 12.
    scores = {(0, 1): (6, 5), (0, 2): (4, 7), (0, 3): (8, 6)}
    ranking = run_tournament("anchor", 4, scripted(scores))
    assert ranking.scores_G == [12.0, 10.0, 14.0, 12.0]
    assert ranking.ranks_G == [1.5, 3.0, 0.0, 1.5]


def test_a_seeded_bracket_of_four_worked_by_hand():
    # Seeding (both orders): anchor (12 + 8 + 16) / 3 = 12; 1: 10, 2: 14, 3: 13. Seeds 2, 3, 0, 1.
    # Semi-finals 2 v 1 and 3 v 0; 0 has already met 3 and won 16:13. 2 beats 1 by 16:12. Final 2 v 0: 14:8 from the seeding.
    scores = {(0, 1): (6, 5), (0, 2): (4, 7), (0, 3): (8, 6.5), (1, 2): (6, 8)}
    ranking = run_tournament(SEEDED, 4, scripted(scores))
    assert [(match.i, match.j, match.round) for match in ranking.matches] == [(0, 1, 0), (0, 2, 0), (0, 3, 0), (2, 1, 1)]
    assert ranking.scores_G == [12.0, (10 + 12) / 2, (14 + 16) / 2, 13.0]
    assert ranking.ranks_G == [1.0, 3.0, 0.0, 2.0]  # inside the semi-finals' tier 13 beats 11
    assert (ranking.judge_calls, ranking.critical_path) == (8, 2)


def test_sum_adds_bracket_scores_to_the_seeding_score_as_algorithm_1_does():
    # The bracket above: 0 has 12 + 16 + 8, 1 has 10 + 12, 2 has 14 + 16 + 14, 3 has 13 + 13.
    scores = {(0, 1): (6, 5), (0, 2): (4, 7), (0, 3): (8, 6.5), (1, 2): (6, 8)}
    ranking = run_tournament(SEEDED, 4, scripted(scores), accumulate="sum")
    assert ranking.scores_G == [36.0, 22.0, 44.0, 26.0]


def test_an_upset_puts_the_better_seed_out():
    qualities = {0: 6, 1: 9, 2: 7, 3: 5}
    scores = {(i, j): (qualities[i], qualities[j]) for i, j in combinations(range(4), 2)} | {(1, 3): (2, 4)}
    ranking = run_tournament(SEEDED, 4, scripted(scores))
    assert ranking.ranks_G[1] > ranking.ranks_G[3]
    assert ranking.ranks_G[2] == 0.0  # 2 beats 0 in its semi-final and the upsetter in the final


@each_size
def test_standard_placement_lets_seeds_meet_as_late_as_they_can(size):
    places = standard_placement(size)
    assert sorted(places) == list(range(len(places)))
    assert all(pair[0] < size for pair in zip(places[::2], places[1::2], strict=True))  # no bye meets a bye
    while len(places) > 1:
        assert all(a + b == len(places) - 1 for a, b in zip(places[::2], places[1::2], strict=True))
        places = [min(a, b) for a, b in zip(places[::2], places[1::2], strict=True)]


def test_byes_go_to_the_best_seeds_and_cost_no_match():
    qualities = [9, 8, 7, 6, 5]  # a bracket of 8: only seeds 4 and 5 play in its first round
    ranking = run_tournament(SEEDED, 5, perfect(qualities))
    assert {(match.i, match.j) for match in ranking.matches if match.round == 1} == {(3, 4), (1, 2)}
    assert ranking.ranks_G == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_algorithm1_placement_pairs_the_rounds_as_the_paper_does():
    # Anchor last, so that no bracket match is known from the seeding but that of seed 1 v seed 8.
    qualities = [1, 8, 7, 6, 5, 4, 3, 2]  # trajectory k is seed k for k >= 1, the anchor is seed 8
    ranking = run_tournament(SEEDED, 8, perfect(qualities), placement="algorithm1")
    bracket = {(match.i, match.j): match.round for match in ranking.matches if match.round > 0}
    assert bracket == {(3, 6): 1, (4, 5): 1, (2, 7): 1, (1, 3): 2, (4, 2): 2, (1, 2): 3}


@each_size
def test_algorithm1_placement_plays_every_size_and_finds_the_best(size):
    qualities = shuffled(size, seed=1)
    ranks = run_tournament(SEEDED, size, perfect(qualities), placement="algorithm1", accumulate="sum").ranks_G
    assert ranks[qualities.index(max(qualities))] == 0.0
    assert sorted(ranks) == list(range(size))


def test_a_draw_sends_the_better_seed_on():
    # Seeds 1, 2, 0, 3. Semi-finals: 1 and 3 draw, 2 beats 0; 1 loses the final. Means of the tier below: 0 has 10, 3 has 9.
    scores = {(0, 1): (5, 9), (0, 2): (5, 7), (0, 3): (5, 3), (1, 3): (6, 6), (1, 2): (7, 8)}
    ranking = run_tournament(SEEDED, 4, scripted(scores))
    assert ranking.ranks_G == [2.0, 1.0, 0.0, 3.0]


@pytest.mark.parametrize("seed", range(5))
def test_a_draw_between_equal_seeds_gives_both_the_tier_that_one_reaches(seed):
    # 1 and 2 are seeds 1 and 2 in the lot's order and draw the final; nothing tells them apart.
    assert run_tournament(SEEDED, 4, perfect([5, 9, 9, 1]), seed=seed).ranks_G == [2.0, 0.5, 0.5, 3.0]


def test_after_a_failed_bracket_match_the_better_seed_goes_on():
    qualities = [1, 9, 7, 5]  # semi-finals 1 v 0 and 2 v 3; the latter fails
    scores = {(i, j): (qualities[i], qualities[j]) for i, j in combinations(range(4), 2)}
    ranking = run_tournament(SEEDED, 4, scripted(scores, failed=[{2, 3}]))
    assert ranking.ranks_G == [3.0, 0.0, 1.0, 2.0]
    assert [{match.i, match.j} for match in ranking.failed_matches] == [{2, 3}]


@pytest.mark.parametrize("seed", range(5))
def test_a_failed_final_between_equal_seeds_is_not_decided_by_the_lot(seed):
    qualities = [5, 9, 9, 1]
    scores = {(i, j): (qualities[i], qualities[j]) for i, j in combinations(range(4), 2)}
    assert run_tournament(SEEDED, 4, scripted(scores, failed=[{1, 2}]), seed=seed).ranks_G == [2.0, 0.5, 0.5, 3.0]


def test_a_trajectory_without_a_seeding_score_is_seeded_last_and_can_still_win():
    scores = {(0, 1): (5, 8), (0, 2): (5, 6), (1, 3): (6, 9), (2, 3): (4, 9)}
    ranking = run_tournament(SEEDED, 4, scripted(scores, failed=[{0, 3}]))
    assert ranking.ranks_G[3] == 0.0


@each_topology
def test_a_trajectory_without_any_verdict_is_not_ranked(topology):
    failed = [{3, other} for other in range(3)]
    scores = {(i, j): (9 - i, 9 - j) for i, j in combinations(range(4), 2)}
    ranking = run_tournament(topology, 4, scripted(scores, failed))
    assert ranking.ranks_G == [0.0, 1.0, 2.0, None]
    assert ranking.scores_G[3] is None


def test_a_match_starts_when_both_entrants_are_known():
    # Seeds are the indices shifted by the weak anchor: 1 … 7, 0. Match 4 v 5 hangs until the other half has its finalist.
    started, finalist_known = [], asyncio.Event()

    async def compare(i, j):
        started.append({i, j})
        if {i, j} == {4, 5}:
            await asyncio.wait_for(finalist_known.wait(), timeout=5)
        if {i, j} == {2, 3}:
            finalist_known.set()
        return 10 - (i or 9), 10 - (j or 9)

    ranking = asyncio.run(play_tournament(SEEDED, 8, compare))
    assert ranking.ranks_G == [7.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert started.index({2, 3}) < started.index({1, 4})
    assert ranking.critical_path == 4  # seeding, then three rounds


def test_an_unknown_topology_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'round_robin'"):
        build_topology("roundrobin", 4)


def test_unknown_parameters_and_values_are_answered_with_the_valid_ones():
    with pytest.raises(ValueError, match="no parameter acumulate; it has: accumulate, placement"):
        build_topology(SEEDED, 4, acumulate="sum")
    with pytest.raises(ValueError, match="round_robin has no parameter placement; it has: none"):
        build_topology("round_robin", 4, placement="standard")
    with pytest.raises(ValueError, match="did you mean 'algorithm1'"):
        build_topology(SEEDED, 4, placement="algoritm_1")
