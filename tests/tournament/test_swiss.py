"""The Swiss system: rounds, byes, pairs of equal records, Buchholz."""

from itertools import product
from random import Random

import pytest
from judges import noisy, perfect, scripted

from arenarl.tournament.play import run_tournament
from arenarl.tournament.swiss import Swiss

SIZES = [*range(2, 18), 31, 33, 64]


def rounds_of(ranking):
    return [[match for match in ranking.matches if match.round == k] for k in range(ranking.critical_path)]


@pytest.mark.parametrize("failure_rate", [0.0, 0.3])
def test_in_each_round_each_entrant_has_one_match_or_the_bye_and_no_entrant_has_two_byes(failure_rate):
    for size, seed in product(SIZES, range(4)):
        ranking = run_tournament("swiss", size, noisy(range(size), seed, failure_rate), seed=seed)
        rounds = rounds_of(ranking)
        assert len(rounds) == Swiss(size).rounds == next(k for k in range(9) if 2**k >= size)
        byes = []
        for matches in rounds:
            playing = [i for match in matches for i in (match.i, match.j)]
            assert len(playing) == len(set(playing)) == size - size % 2
            byes += set(range(size)) - set(playing)
        assert len(byes) == len(set(byes)) == len(rounds) * (size % 2)


def test_a_perfect_judge_puts_the_best_first_alone_with_a_full_score():
    """Without byes, the first rounds pair equal records."""
    for size, seed in product(SIZES, range(8)):
        qualities, points = Random(seed).sample(range(size), size), [0] * size
        ranking = run_tournament("swiss", size, perfect(qualities), seed=seed)
        best = qualities.index(size - 1)
        assert ranking.ranks_G[best] == 0.0
        assert [g for g, total in enumerate(ranking.scores_G) if total == Swiss(size).rounds] == [best]
        for matches in rounds_of(ranking)[:3] if size in (2, 4, 8, 16) else ():  # later, all equal records may have met
            assert all(points[match.i] == points[match.j] for match in matches)
            for match in matches:
                points[match.i if match.scores[0] > match.scores[1] else match.j] += 1


def test_points_and_buchholz_worked_by_hand_and_after_a_failed_match(monkeypatch):
    monkeypatch.setattr("arenarl.tournament.schedules.Topology.lots", property(lambda self: list(range(self.size))))
    results = {}

    def play(schedule, scores):
        pairings = schedule.ready(results)
        for i, j, _ in pairings:
            verdict = scores[i], scores[j]
            results[i, j], results[j, i] = verdict, verdict[::-1]
        return {frozenset(pairing[:2]) for pairing in pairings}

    schedule = Swiss(3)
    (first,) = play(schedule, [5, 4, 3])  # one match; the resting entrant has a bye, so one point
    (resting,), loser = {0, 1, 2} - first, max(first)
    (second,) = play(schedule, [5, 5, 5])  # a draw; the loser has the bye, because it has the fewest points
    assert second == {resting, min(first)}
    assert schedule.ready(results) == []
    points = {resting: 1.5, min(first): 1.5, loser: 1.0}
    standings = schedule.standings(results)
    assert [standings[i].score for i in range(3)] == [points[i] for i in range(3)]
    # Buchholz per round, of two: `resting` met 1.5 points, `min(first)` met 1.0 and 1.5, `loser` met 1.5.
    keys = [standings[entrant].key for entrant in (resting, min(first), loser)]
    assert keys == [(0.75, 0.75), (0.75, 1.25), (0.5, 0.75)]
    scores = {(i, j): (9 - i, 9 - j) for i in range(4) for j in range(i + 1, 4)}
    whole = run_tournament("swiss", 4, scripted(scores))
    (last,) = [match for match in whole.matches if match.round == 1 and 0 in (match.i, match.j)]
    ranking = run_tournament("swiss", 4, scripted(scores, failed=[{last.i, last.j}]))
    assert ranking.scores_G[0] == 1.0 and ranking.ranks_G[0] < 2  # one match, one win
    assert len(ranking.failed_matches) == 1
