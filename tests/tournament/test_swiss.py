"""The Swiss system: rounds, byes, score groups, Buchholz."""

from random import Random

import pytest
from judges import noisy, perfect, scripted

from arenarl.tournament.play import run_tournament
from arenarl.tournament.swiss import Swiss

each_size = pytest.mark.parametrize("size", range(2, 18))


def rounds_of(ranking):
    """The matches of each round."""
    return [[match for match in ranking.matches if match.round == k] for k in range(ranking.critical_path)]


@each_size
@pytest.mark.parametrize("failure_rate", [0.0, 0.3])
def test_swiss_plays_its_rounds_with_one_match_or_one_bye_an_entrant(size, failure_rate):
    for seed in range(8):
        ranking = run_tournament("swiss", size, noisy(range(size), seed, failure_rate), seed=seed)
        rounds = rounds_of(ranking)
        assert len(rounds) == Swiss(size).rounds == next(k for k in range(9) if 2**k >= size)
        byes = []
        for matches in rounds:
            playing = [i for match in matches for i in (match.i, match.j)]
            assert len(playing) == len(set(playing)) == size - size % 2
            byes += set(range(size)) - set(playing)
        assert len(byes) == len(set(byes)) == len(rounds) * (size % 2)


@each_size
def test_a_perfect_judge_puts_the_best_first_alone_with_a_full_score(size):
    """And without byes, everyone meets an equal record."""
    for seed in range(20):
        qualities, points = Random(seed).sample(range(size), size), [0] * size
        ranking = run_tournament("swiss", size, perfect(qualities), seed=seed)
        best = qualities.index(size - 1)
        assert ranking.ranks_G[best] == 0.0
        assert [g for g, total in enumerate(ranking.scores_G) if total == Swiss(size).rounds] == [best]
        for matches in rounds_of(ranking)[:3] if size in (2, 4, 8, 16) else ():  # later, equals may all have met
            assert all(points[match.i] == points[match.j] for match in matches)
            for match in matches:
                points[match.i if match.scores[0] > match.scores[1] else match.j] += 1


def test_points_and_buchholz_worked_by_hand(monkeypatch):
    # By lot 0, 1, 2, 3, 4. Round 1: 4 has the bye; whoever meets, 0 and 1 beat 2 and 3, but 0 draws where it meets 1.
    monkeypatch.setattr("arenarl.tournament.schedules.Topology.lots", property(lambda self: list(range(self.size))))
    results = {}

    def play(schedule, scores):
        pairings = schedule.ready(results)
        for i, j, _ in pairings:
            verdict = scores[i], scores[j]
            results[i, j], results[j, i] = verdict, verdict[::-1]
        return {frozenset(pairing[:2]) for pairing in pairings}

    schedule = Swiss(3)
    (first,) = play(schedule, [5, 4, 3])  # one match; the other entrant rests and has a point
    resting = ({0, 1, 2} - first).pop()
    loser = max(first)
    (second,) = play(schedule, [5, 5, 5])  # a draw; the loser rests, for it has least
    assert second == {resting, min(first)}
    assert schedule.ready(results) == []
    points = {resting: 1.5, min(first): 1.5, loser: 1.0}
    standings = schedule.standings(results)
    assert [standings[i].score for i in range(3)] == [points[i] for i in range(3)]
    # Buchholz: the resting met one with 1.5, the other winner met 1.0 and 1.5, the loser 1.5; shares of two rounds.
    assert standings[resting].key == (0.75, 0.75)
    assert standings[min(first)].key == (0.75, 1.25)
    assert standings[loser].key == (0.5, 0.75)


def test_a_failed_match_leaves_the_share_of_points():
    scores = {(i, j): (9 - i, 9 - j) for i in range(4) for j in range(i + 1, 4)}
    whole = run_tournament("swiss", 4, scripted(scores))
    (last,) = [match for match in whole.matches if match.round == 1 and 0 in (match.i, match.j)]
    ranking = run_tournament("swiss", 4, scripted(scores, failed=[{last.i, last.j}]))
    assert ranking.scores_G[0] == 1.0 and ranking.ranks_G[0] < 2  # one match, won: as good a share as before
    assert len(ranking.failed_matches) == 1
