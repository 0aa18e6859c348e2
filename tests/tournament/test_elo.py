"""Elo: ratings worked by hand, the choice of matches, and the Bradley-Terry estimate."""

import itertools
import math
import random

import pytest
from judges import perfect

from arenarl.tournament.elo import Elo, bradley_terry
from arenarl.tournament.play import run_tournament


def results_of(*matches):
    """Return the results of matches (i, j, score of i, score of j). A score of None marks a failed match."""
    results = {}
    for i, j, *scores in matches:
        results[i, j], results[j, i] = (None, None) if None in scores else (tuple(scores), tuple(scores[::-1]))
    return results


def test_ratings_worked_by_hand():
    """K = 32: a win gives 32 (1 - expected) points, so 16 at first. A batch has ⌊3/2⌋ = 1 match."""
    schedule, order, results = Elo(3, seed=1), [], {}
    while ready := schedule.ready(results):
        ((i, j, number),) = ready
        assert number == len(order)
        order.append((i, j))
        results |= results_of((i, j, 9 - i, 9 - j))  # the lower number wins
    ratings = [0.0] * 3
    for i, j in order:
        best, worst = min(i, j), max(i, j)
        gain = 32 * (1 - 1 / (1 + 10 ** ((ratings[worst] - ratings[best]) / 400)))
        ratings[best] += gain
        ratings[worst] -= gain
    assert [standing.score for standing in schedule.standings(results)] == pytest.approx(ratings)
    assert len(order) == 3 and ratings[0] > ratings[1] > ratings[2]
    assert len(set(order[0]) & set(order[1])) == 1  # the entrant without a match plays next
    schedule = Elo(2)
    ((i, j, _),) = schedule.ready({})
    assert [standing.score for standing in schedule.standings(results_of((i, j, 5, 5)))] == [0.0, 0.0]
    won = schedule.standings(results_of((i, j, 6, 5)))
    assert (won[i].score, won[j].score) == (16.0, -16.0)
    assert schedule.standings(results_of((i, j, None, 5))) == [None, None]


def test_a_batch_pairs_entrants_with_few_matches_and_close_ratings():
    """After the first batch of four, winners have 16 and losers -16: p(1 - p) is .25 for equals, .248 for others."""
    schedule = Elo(4, seed=3)
    first = schedule.ready({})
    assert sorted(entrant for pairing in first for entrant in pairing[:2]) == [0, 1, 2, 3]
    results = results_of(*[(i, j, 6, 4) for i, j, _ in first])
    winners = {i for i, _, _ in first}
    second = schedule.ready(results)
    assert [pairing.round for pairing in second] == [1, 1] and {frozenset(pairing[:2]) for pairing in second} == {
        frozenset(winners), frozenset(range(4)) - winners
    }  # fmt: skip


@pytest.mark.parametrize(("size", "matches"), [(2, 1), (3, 3), (4, 6), (8, 24), (16, 64)])
def test_the_budget_is_n_log_n_matches_at_most_one_per_pair(size, matches):
    assert Elo(size).budget == matches == len(run_tournament("elo", size, perfect(list(range(size)))).matches)
    assert Elo(size, elo_matches=2).budget == min(2, size * (size - 1) // 2)


@pytest.mark.parametrize("estimate", ["sequential", "bradley_terry"])
def test_a_perfect_judge_puts_the_best_first_nearly_always(estimate):
    successes = 0
    for seed in range(40):
        qualities = random.Random(seed).sample(range(100), 8)
        ranks = run_tournament("elo", 8, perfect(qualities), seed=seed, elo_estimate=estimate).ranks_G
        successes += ranks[qualities.index(max(qualities))] == 0
    assert successes >= 38


@pytest.mark.parametrize("outcomes", [
    [(0, 1, 1.0), (0, 2, 1.0), (1, 2, 0.5), (2, 3, 1.0), (3, 0, 1.0)],
    [(i, j, 1.0) for j in range(17) for i in range(j)],
])  # fmt: skip
def test_bradley_terry_is_where_the_gradient_is_zero(outcomes):
    """Wins equal expected wins, including the draw with the entrant of rating 0, however many steps that takes."""
    ratings = bradley_terry(1 + max(max(i, j) for i, j, _ in outcomes), outcomes)

    def chance(lead):
        return 1 / (1 + 10 ** (-lead / 400))

    for entrant, rating in enumerate(ratings):
        surplus = 0.5 - chance(rating)
        for i, j, won in outcomes:
            surplus += (entrant == i) * (won - chance(ratings[i] - ratings[j])) + (entrant == j) * (
                1 - won - chance(ratings[j] - ratings[i])
            )
        assert surplus == pytest.approx(0, abs=1e-6)
    assert math.isfinite(sum(bradley_terry(2, [(0, 1, 1.0)] * 50)))


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13])
@pytest.mark.parametrize("seed", range(5))
def test_a_batch_holds_the_most_uncertain_pairs_by_the_definition(size, seed):
    """The pairs of `ready` are those that a search over all pairs finds, also after draws and failed matches."""
    schedule, draw, results = Elo(size, seed=seed), random.Random(seed), {}
    while ready := schedule.ready(results):
        ratings = schedule._ratings(schedule._outcomes(results))
        played = {i: sum(i == entrant for entrant, _ in results) for i in range(size)}
        pairs = [pair for pair in itertools.combinations(schedule.lots, 2) if pair not in results]

        def uncertainty(pair, ratings=ratings, played=played):
            i, j = pair
            p = 1 / (1 + 10 ** ((ratings[j] - ratings[i]) / 400))
            return round(round(p * (1 - p), 9) + 1 / (1 + played[i] + played[j]), 12)

        for i, j, _ in ready:
            assert (i, j) == max(pairs, key=uncertainty)  # `max` takes the first of equal pairs
            pairs.remove((i, j))
            played[i], played[j] = played[i] + 1, played[j] + 1
        results |= results_of(*[(i, j, draw.choice([None, 4, 5, 6]), 5) for i, j, _ in ready])
