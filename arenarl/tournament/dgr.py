"""DGR as a topology (arXiv 2510.15514): all pairs play, cycles are removed, net wins rank.

The won matches form a directed graph. Removing a minimum feedback arc set, the fewest won matches without which no
cycle is left, makes it acyclic. An entrant's score is its remaining wins minus its remaining losses, divided by N - 1.
Differs from DGR: both orders are judged (Eq. 3, ArenaRL). Among several minimum sets, the random order of the entrants
decides; above `EXACT` entrants a greedy search replaces the exact one (both our reconstruction).
"""

from collections.abc import Collection, Sequence

from arenarl.tournament.schedules import DECIMALS, Results, RoundRobin, Standing, outcome

EXACT = 10  # entrants up to which the minimum is exact; DGR's

Arc = tuple[int, int]  # (winner, loser)


def feedback_arcs(arcs: Collection[Arc], entrants: Sequence[int]) -> set[Arc]:
    """Return a minimum set of arcs without which no cycle is left: exact for up to `EXACT` entrants, else greedy.

    Of several such sets, the order of `entrants` decides.

    >>> feedback_arcs({(0, 1), (1, 2), (2, 0), (0, 3)}, [0, 1, 2, 3])
    {(2, 0)}
    """
    find_order = _best_order if len(entrants) <= EXACT else _greedy_order
    order = find_order(set(arcs), list(entrants))
    place = {entrant: index for index, entrant in enumerate(order)}
    return {(winner, loser) for winner, loser in arcs if place[winner] > place[loser]}


def _best_order(arcs: set[Arc], entrants: list[int]) -> list[int]:
    """Return the order with the fewest arcs against it, by dynamic programming over the sets of first entrants."""
    size = len(entrants)
    beaten = [sum(1 << k for k in range(size) if (entrants[i], entrants[k]) in arcs) for i in range(size)]
    best: list[tuple[int, int]] = [(0, -1)] * (1 << size)  # set -> (arcs against the order, its last entrant)
    for chosen in range(1, 1 << size):
        members = [last for last in range(size) if chosen >> last & 1]
        best[chosen] = min(
            (best[chosen ^ 1 << last][0] + (beaten[last] & chosen).bit_count(), -last) for last in members
        )
    order, chosen = [], (1 << size) - 1
    while chosen:
        last = -best[chosen][1]
        order.append(entrants[last])
        chosen ^= 1 << last
    return order[::-1]


def _greedy_order(arcs: set[Arc], entrants: list[int]) -> list[int]:
    """Return an order with few arcs against it: take an entrant without losses first, one without wins last, otherwise
    the one with the largest surplus of wins (Eades, Lin and Smyth, 1993)."""
    first, last, left = [], [], list(entrants)
    while left:
        wins = {i: sum((i, k) in arcs for k in left) for i in left}
        losses = {i: sum((k, i) in arcs for k in left) for i in left}
        if (sink := next((i for i in left if not wins[i]), None)) is not None:
            last.append(sink)
            left.remove(sink)
            continue
        source = next((i for i in left if not losses[i]), None)
        pick = max(left, key=lambda i: wins[i] - losses[i]) if source is None else source
        first.append(pick)
        left.remove(pick)
    return first + last[::-1]


def net_wins(arcs: Collection[Arc], entrants: Sequence[int]) -> dict[int, float]:
    """Return (wins - losses) / number of opponents, -1 to 1, after the feedback arcs are removed.

    0 beats 3 and is in a cycle with 1 and 2, whose arc (2, 0) is removed:

    >>> net_wins({(0, 1), (1, 2), (2, 0), (0, 3), (1, 3), (2, 3)}, [0, 1, 2, 3])
    {0: 0.666666667, 1: 0.333333333, 2: 0.0, 3: -1.0}
    """
    removed, opponents = feedback_arcs(arcs, entrants), max(1, len(entrants) - 1)
    net = dict.fromkeys(sorted(entrants), 0)
    for winner, loser in set(arcs) - removed:
        net[winner] += 1
        net[loser] -= 1
    return {entrant: round(wins / opponents, DECIMALS) for entrant, wins in net.items()}


class DGR(RoundRobin):
    """All pairs play: N(N-1)/2 matches, ranked by net wins without cycles. DGR (arXiv 2510.15514).
    Draws and failed matches add no arc. A perfect judge gives the true order."""

    def standings(self, results: Results) -> list[Standing | None]:
        won = {pair for pair, scores in results.items() if scores and outcome(scores) > 0}
        score = net_wins(won, self.lots)
        judged = {i for (i, _), scores in results.items() if scores}
        return [Standing.of_score(score[i]) if i in judged else None for i in range(self.size)]
