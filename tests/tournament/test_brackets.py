"""Knockouts worked by hand, match by match, and the effect of failures and draws."""

import asyncio
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judges import noisy, perfect, scripted

from arenarl.tournament.brackets import (
    DoubleElimination,
    SeededSingleElimination,
    SingleElimination,
    standard_placement,
)
from arenarl.tournament.play import play_tournament, run_tournament

SEEDED, SINGLE, DOUBLE = "seeded_single_elimination", "single_elimination", "double_elimination"
SIZES = range(2, 18)


def shuffled(size, seed=0):
    return Random(seed).sample(range(1, size + 1), size)


@pytest.fixture
def lots_in_order(monkeypatch):
    """The random order of the entrants is 0, 1, 2, …"""
    monkeypatch.setattr("arenarl.tournament.schedules.Topology.lots", property(lambda self: list(range(self.size))))


def scores_of(qualities):
    return {(i, j): (qualities[i], qualities[j]) for i, j in combinations(range(len(qualities)), 2)}


def played(ranking):
    return {(match.i, match.j): match.round for match in ranking.matches}


@pytest.mark.parametrize(("size", "calls"), [(8, 24.5), (16, 56.25)])
def test_seeding_matches_save_as_many_calls_as_the_docs_state(size, calls):
    """In a bracket of 8 an anchor of rank 0 … 7 plays 3, 3, 2, 2, 1, 1, 1, 1 matches: 3.5 of 28 calls on average."""
    qualities = [[rank, *(other for other in range(size) if other != rank)] for rank in range(size)]  # anchor first
    assert sum(run_tournament(SEEDED, size, perfect(quality)).judge_calls for quality in qualities) / size == calls


def test_seeded_brackets_worked_by_hand():
    # Seeding (both orders): anchor (12 + 8 + 16) / 3 = 12; 1: 10, 2: 14, 3: 13. Seeds 2, 3, 0, 1.
    # Semi-finals 2 v 1 and 3 v 0; 0 beat 3 by 16:13 in the seeding. 2 beats 1 by 16:12. Final 2 v 0: 14:8, also known.
    scores = {(0, 1): (6, 5), (0, 2): (4, 7), (0, 3): (8, 6.5), (1, 2): (6, 8)}
    ranking = run_tournament(SEEDED, 4, scripted(scores))
    assert played(ranking) == {(0, 1): 0, (0, 2): 0, (0, 3): 0, (2, 1): 1}
    assert ranking.scores_G == [12.0, (10 + 12) / 2, (14 + 16) / 2, 13.0]
    assert ranking.ranks_G == [1.0, 3.0, 0.0, 2.0]  # losers of the semi-finals: 13 beats 11
    assert (ranking.judge_calls, ranking.critical_path) == (8, 2)
    qualities = [9, 8, 7, 6, 5]  # a bracket of 8: only seeds 4 and 5 play in its first round
    ranking = run_tournament(SEEDED, 5, perfect(qualities))
    assert {(match.i, match.j) for match in ranking.matches if match.round == 1} == {(3, 4), (1, 2)}
    assert ranking.ranks_G == [0.0, 1.0, 2.0, 3.0, 4.0]
    # Seeding: 1 has 18, 0 has (10 + 10) / 2 = 10, 3 has 8, 2 has none. Semi-finals: 2 loses to 1 with 12, 3 loses to 0.
    scores = {(0, 1): (5, 9), (0, 3): (5, 4), (1, 2): (9, 6)}
    ranking = run_tournament(SEEDED, 4, scripted(scores, failed=[{0, 2}]), accumulate="sum")
    assert ranking.scores_G == [30.0, 54.0, 24.0, 16.0]
    assert ranking.ranks_G == [1.0, 0.0, 2.0, 3.0]


def test_in_standard_placement_better_seeds_meet_later():
    for size in SIZES:
        places = standard_placement(size)
        assert sorted(places) == list(range(len(places)))
        assert all(pair[0] < size for pair in zip(places[::2], places[1::2], strict=True))  # no bye meets a bye
        while len(places) > 1:
            assert all(a + b == len(places) - 1 for a, b in zip(places[::2], places[1::2], strict=True))
            places = [min(a, b) for a, b in zip(places[::2], places[1::2], strict=True)]


def test_a_perfect_judge_puts_the_best_first_with_algorithm1_and_the_best_two_in_double_elimination():
    for size in SIZES:
        qualities = shuffled(size, seed=1)
        ranks = run_tournament(SEEDED, size, perfect(qualities), placement="algorithm1", accumulate="sum").ranks_G
        assert ranks[qualities.index(max(qualities))] == 0.0
        assert sorted(ranks) == list(range(size))
    for size, seed in product(SIZES, range(8)):
        qualities = shuffled(size, seed)
        ranks = run_tournament(DOUBLE, size, perfect(qualities), seed=seed).ranks_G
        assert (ranks[qualities.index(size)], ranks[qualities.index(size - 1)]) == (0.0, 1.0)


@pytest.mark.parametrize(("topology", "scores", "failed", "ranks_G"), [
    # Seeds 1, 2, 0, 3. In the semi-finals 1 and 3 draw and 2 beats 0. The losers 0 and 3 have the means 10 and 9.
    (SEEDED, {(0, 1): (5, 9), (0, 2): (5, 7), (0, 3): (5, 3), (1, 3): (6, 6), (1, 2): (7, 8)}, [], [2, 1, 0, 3]),
    (SEEDED, scores_of([1, 9, 7, 5]), [{2, 3}], [3, 0, 1, 2]),  # a semi-final fails: the better score so far advances
    # 3 has no seeding score, is seeded last, and wins.
    (SEEDED, {(0, 1): (5, 8), (0, 2): (5, 6), (1, 3): (6, 9), (2, 3): (4, 9)}, [{0, 3}], [3, 2, 1, 0]),
    # Seeds 0, 1, then 2, 3 and 4 without a score. Only 0 v 1 has a verdict, so the others have no rank.
    (SEEDED, scores_of([9, 8, 7, 6, 5]), [set(pair) for pair in combinations(range(5), 2) if pair != (0, 1)],
     [0, 1, None, None, None]),
    # 0 v 3 fails and 0 has a pass; 1 beats 2 and then 0. A pass is not a win, so 0 is like 2, and points decide.
    (SINGLE, {(1, 2): (9, 7), (0, 1): (8, 9)}, [{0, 3}], [1, 0, 2, None]),
    (SINGLE, {(1, 2): (9, 7), (0, 1): (6, 9)}, [{0, 3}], [2, 0, 1, None]),
    # 0 v 7 fails. 0 beats 3, which has a win, so the pass counts; then 0 loses to 1.
    (SINGLE, scores_of(range(20, 12, -1)) | {(0, 3): (1, 0), (0, 1): (1, 2), (0, 2): (1, 2)}, [{0, 7}],
     [1, 0, 2, 3, 4, 5, 6, None]),
    # 0 v 3 fails; 3 drops, beats 2 and loses to 0, which lost to 1. So the loser of a failed match still has a rank.
    (DOUBLE, scores_of([9, 8, 7, 6]) | {(0, 1): (8, 9), (2, 3): (5, 6)}, [{0, 3}], [1, 0, 3, 2]),
    # 0 has a bye and 2 beats 1. The final fails: 2 has a score, 0 has none.
    (SINGLE, {(1, 2): (3, 4)}, [{0, 2}, {0, 1}], [None, 1, 0]),
    (DOUBLE, {(1, 2): (3, 4)}, [{0, 2}, {0, 1}], [None, 1, 0]),
])  # fmt: skip
def test_draws_and_failed_matches_worked_by_hand(topology, scores, failed, ranks_G, lots_in_order):
    ranking = run_tournament(topology, len(ranks_G), scripted(scores, failed))
    assert ranking.ranks_G == ranks_G and bool(ranking.failed_matches) == bool(failed)
    assert all({match.i, match.j} in failed for match in ranking.failed_matches)


def test_a_draw_or_a_failed_final_between_equals_gives_both_the_same_rank():
    qualities = [5, 9, 9, 1]  # 1 and 2 are the best seeds in random order, and meet in the final
    judges = perfect(qualities), scripted(scores_of(qualities), failed=[{1, 2}])
    for judge, seed in product(judges, range(5)):
        assert run_tournament(SEEDED, 4, judge, seed=seed).ranks_G == [2.0, 0.5, 0.5, 3.0]


def test_a_match_starts_when_both_entrants_are_known():
    # The seeds are 1 … 7, then the weak anchor 0. Match 4 v 5 waits until match 2 v 3 starts in the other half.
    started, finalist_known = [], asyncio.Event()

    async def compare(i, j):
        started.append({i, j})
        if {i, j} == {4, 5}:
            await asyncio.wait_for(finalist_known.wait(), timeout=60)
        if {i, j} == {2, 3}:
            finalist_known.set()
        return 10 - (i or 9), 10 - (j or 9)

    ranking = asyncio.run(play_tournament(SEEDED, 8, compare))
    assert ranking.ranks_G == [7.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert started.index({2, 3}) < started.index({1, 4})
    assert ranking.critical_path == 4  # seeding, then three rounds


def test_algorithm_1_on_a_group_of_eight_worked_by_hand():
    """Both orders agree, so the scores of a match are twice the numbers given here."""
    seeding = dict(enumerate([(5, 8), (6, 4), (5, 7), (7, 3), (4, 9), (5, 6), (6, 2)], start=1))
    seeding = {(0, i): scores for i, scores in seeding.items()}
    # Lines 3-9: s_anc = 2 (5+6+5+7+4+5+6) / 7 = 76/7 = 10.86; the others 16, 8, 14, 6, 18, 12, 4. Seeds: 5, 1, 3, 6, 0,
    # 2, 4, 7. Lines 14-23: seeds 1 v 8, 3 v 6, 4 v 5, 2 v 7 from front to back: 5 v 7, 3 v 2, 6 v 0, 1 v 4.
    quarters = {(5, 7): (8, 5), (3, 2): (6, 7), (1, 4): (9, 4)}  # 6 v 0 is known: 6:5. 2 beats 3 against the seeding.
    halves = {(5, 2): (7, 6), (6, 1): (7, 5)}  # 6 beats 1
    final = {(5, 6): (6, 8)}
    judge = scripted(seeding | quarters | halves | final)
    ranking = run_tournament(SEEDED, 8, judge, placement="algorithm1", accumulate="sum")
    rounds = (seeding, quarters, halves, final)
    assert played(ranking) == {pair: number for number, pairs in enumerate(rounds) for pair in pairs}
    # Line 29, V: 5 has 18+16+14+12, 6 has 12+12+14+16, 2 has 8+14+12, 1 has 16+18+10, 7: 4+10, 3: 14+12, 0:
    # 76/7+10, 4: 6+8.
    assert ranking.scores_G == pytest.approx([76 / 7 + 10, 44, 34, 26, 14, 60, 54, 14])
    # Lines 36-41: 6 champion, 5 finalist, then 1 before 2, then 3, 0, and 4 and 7 with equal sums.
    assert ranking.ranks_G == [5.0, 2.0, 3.0, 4.0, 6.5, 1.0, 0.0, 6.5]


def test_single_and_double_elimination_worked_by_hand(lots_in_order):
    # Standard placement of 0 … 4: 0 has a bye, 3 v 4, 1 and 2 have byes and meet.
    ranking = run_tournament(SINGLE, 5, perfect([9, 5, 8, 6, 7]))
    assert played(ranking) == {(3, 4): 0, (1, 2): 0, (0, 4): 1, (0, 2): 2}
    assert ranking.ranks_G == [0.0, 3.0, 1.0, 4.0, 2.0]  # out first 3; then 4 and 1, and 7 points beat 5
    # Winners: 0 beats 3, 2 beats 1; 0 beats 2. Losers: 1 beats 3; 2 v 1 is known, so 2 advances without a call.
    # The final 0 v 2 is known as well: 0 wins.
    scores = {(0, 3): (9, 1), (1, 2): (4, 5), (0, 2): (9, 6), (3, 1): (2, 7)}
    ranking = run_tournament(DOUBLE, 4, scripted(scores))
    assert played(ranking) == {(0, 3): 0, (1, 2): 0, (0, 2): 1, (3, 1): 1}
    assert ranking.ranks_G == [0.0, 2.0, 1.0, 3.0]
    assert ranking.scores_G == [18.0, 11.0, 11.0, 3.0]
    # Winners: 0 beats 3, 2 beats 1, 2 beats 0. Losers: 1 beats 3, then 0. The final 2 v 1 is known from round one.
    scores = {(0, 3): (5, 4), (1, 2): (4, 5), (0, 2): (6, 7), (3, 1): (2, 7), (0, 1): (3, 8)}
    ranking = run_tournament(DOUBLE, 4, scripted(scores))
    assert ranking.ranks_G == [2.0, 1.0, 0.0, 3.0]
    assert ranking.critical_path == 3 and len(ranking.matches) == 5


def verdicts_of(matches):
    results = {}
    for match in matches:
        results[match.i, match.j] = match.scores
        results[match.j, match.i] = match.scores[::-1]
    return results


def test_double_elimination_eliminates_by_two_defeats_and_an_entrant_with_one_can_win():
    for size, seed in product(SIZES, range(3)):
        ranking = run_tournament(DOUBLE, size, noisy(range(size), seed), seed=seed)
        walk = DoubleElimination(size, seed)._walk(verdicts_of(ranking.matches))
        assert not walk.ready and len(walk.outs) == size - 1
        losers = [match.i if match.scores[0] < match.scores[1] else match.j for match in ranking.matches]
        defeats = [losers.count(i) for i in range(size)]
        assert all(1 <= defeats[out.loser] <= 2 for out in walk.outs) and defeats[walk.champion.entrant] <= 1
        assert sum(defeats) == len(ranking.matches)
    defeats = set()
    for seed in range(40):
        ranking = run_tournament(DOUBLE, 16, noisy(range(16), seed), seed=seed)
        verdicts, champion = verdicts_of(ranking.matches), ranking.ranks_G.index(0.0)
        defeats.add(sum(mine < theirs for (i, _), (mine, theirs) in verdicts.items() if i == champion))
    assert defeats == {0, 1}


@settings(max_examples=200)
@given(st.integers(2, 17), st.integers(0, 2**32), st.floats(0, 1))
def test_no_entrant_ranks_above_its_conqueror_or_by_passes_alone(size, seed, failure_share):
    ranking = run_tournament(SINGLE, size, noisy(range(size), seed, failure_share), seed=seed)
    verdicts = verdicts_of([match for match in ranking.matches if match.scores])
    wins, ranks = [pair for pair, (first, second) in verdicts.items() if first > second], ranking.ranks_G
    assert all(ranks[winner] < ranks[loser] for winner, loser in wins)
    if size & (size - 1) == 0:  # for other sizes, byes count like wins
        winners = {winner for winner, _ in wins}
        losers = [g for g in range(size) if ranks[g] is not None and g not in winners]
        assert all(ranks[winner] < ranks[loser] for winner in winners for loser in losers)


KNOCKOUTS = {SINGLE: SingleElimination, SEEDED: SeededSingleElimination, DOUBLE: DoubleElimination}


@given(
    st.sampled_from(sorted(KNOCKOUTS)), st.integers(2, 33), st.integers(0, 2**32), st.floats(0, 1), st.integers(1, 99)
)
def test_a_walk_that_goes_on_equals_a_walk_from_the_first_round(topology, size, seed, failure_share, scores):
    random, results, running = Random(seed), {}, set()
    kept = KNOCKOUTS[topology](size, seed)
    while running := running | set(kept.ready(results)):
        i, j, _ = pairing = random.choice(sorted(running))
        running.remove(pairing)
        pair = None if random.random() < failure_share else (random.randrange(scores) / 7, random.randrange(scores) / 7)
        results[i, j], results[j, i] = pair, pair and pair[::-1]
        fresh, copy = KNOCKOUTS[topology](size, seed), dict(results)
        assert {frozenset(match) for match in kept.ready(results)} == {frozenset(match) for match in fresh.ready(copy)}
    assert (kept.standings(results), kept.bracket(results)) == (fresh.standings(copy), fresh.bracket(copy))


@given(st.sampled_from(sorted(KNOCKOUTS)), st.integers(2, 9), st.integers(0, 2**32))
def test_a_driver_may_change_its_results_and_draw_the_bracket_at_any_time(topology, size, seed):
    random, results, kept = Random(seed), {}, KNOCKOUTS[topology](size, seed)
    for _ in range(3 * size):
        if results and random.random() < 0.1:
            results.clear()
        if results and random.random() < 0.3:
            i, j = random.choice(sorted(results))
            results[i, j], results[j, i] = (8.0, 9.0), (9.0, 8.0)
        fresh, copy = KNOCKOUTS[topology](size, seed), dict(results)
        assert kept.bracket(results) == fresh.bracket(copy)
        ready = kept.ready(results)
        assert {frozenset(match) for match in ready} == {frozenset(match) for match in fresh.ready(copy)}
        if waiting := [match for match in ready if match[:2] not in results]:
            i, j, _ = random.choice(waiting)
            first, second = float(random.randrange(5)), float(random.randrange(5))
            results[i, j], results[j, i] = (first, second), (second, first)


@pytest.mark.parametrize("topology", KNOCKOUTS)
def test_a_bracket_of_256_is_walked_at_most_twice_per_round(topology, monkeypatch):
    walks, walk = [], KNOCKOUTS[topology]._walk
    monkeypatch.setattr(KNOCKOUTS[topology], "_walk", lambda self, results: walks.append(1) or walk(self, results))
    ranking = run_tournament(topology, 256, perfect(range(256)))
    assert len(walks) <= 2 * ranking.critical_path
