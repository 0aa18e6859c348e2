"""The Swiss system: all entrants play each round, against opponents with a similar record. Section 4.5, ArenaRL.

A round starts when the previous round has ended, so the number of results gives the current round. Our rules where the
paper is silent: a draw gives half a point each. A bye gives one point and no opponent. A failed match gives no point,
and the round does not count for its two entrants. Among equal points, the random order decides who meets whom.
"""

from itertools import combinations

from arenarl.tournament.schedules import DECIMALS, Pairing, Results, Standing, Topology, outcome


class Swiss(Topology):
    """ceil(log2 N) rounds of floor(N/2) matches, ranked by points, then by the sum of the opponents' points (Buchholz).

    Entrants meet opponents with close points whom they have not met before; with so few rounds such an opponent always
    exists. The bye goes to the entrant with the fewest points that has had no bye yet. Points and Buchholz are
    averaged over the rounds that count. The reported score is the sum of points. A perfect judge puts the true best
    first, alone with a full score.
    """

    @property
    def rounds(self) -> int:
        """ceil(log2 N)."""
        return (self.size - 1).bit_length()

    def ready(self, results: Results) -> list[Pairing]:
        played_rounds, is_running = divmod(len(results) // 2, self.size // 2)
        if is_running or played_rounds == self.rounds:
            return []
        return [Pairing(i, j, played_rounds) for i, j in self._closest_pairs(results)]

    def standings(self, results: Results) -> list[Standing | None]:
        points, byes = self._points(results), self._byes(results)
        standings: list[Standing | None] = []
        for i in range(self.size):
            met = [j for j in range(self.size) if results.get((i, j))]
            totals = [points[i], sum(points[j] for j in met)]
            counted = len(met) + (i in byes)
            key = tuple(round(total / counted, DECIMALS) for total in totals if met)
            standings.append(Standing(key, points[i]) if met else None)
        return standings

    def _points(self, results: Results) -> list[float]:
        byes = self._byes(results)
        points = [float(i in byes) for i in range(self.size)]
        for (i, _), scores in results.items():
            if scores:
                points[i] += 0.5 + 0.5 * outcome(scores)
        return points

    def _byes(self, results: Results) -> list[int]:
        """Return the entrant with the bye in each round played."""
        if self.size % 2 == 0:
            return []
        played = [i for i, _ in results]
        rounds = [set(played[k : k + self.size - 1]) for k in range(0, len(played), self.size - 1)]
        return [next(i for i in self.lots if i not in playing) for playing in rounds]

    def _closest_pairs(self, results: Results) -> list[tuple[int, int]]:
        """Pair entrants that have not met, as many as possible with equal points, from the most points down.
        With an odd size, the bye is a further entrant of the lowest group; entrants that had a bye have met it."""
        points, byes, bye = self._points(results), self._byes(results), self.size
        groups = [[i for i in self.lots if points[i] == total] for total in sorted(set(points), reverse=True)]
        met = results.keys() | {(i, bye) for i in byes}
        if self.size % 2:
            groups[-1].append(bye)
        pairs = _pairs([], groups, met)
        assert pairs is not None  # with fewer than size / 2 matches behind each entrant, there is a complete pairing
        return [pair for pair in pairs if bye not in pair]


def _pairs(down: list[int], groups: list[list[int]], met: set[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """Pair all entrants of `down` and `groups`; return None if that is impossible.
    `down` are entrants without an opponent in the groups above. As few entrants as possible move down from the first
    group, then from the second, and so on."""
    if not groups:
        return []
    group = down + groups[0]
    most = len(group) if groups[1:] else 0
    for moving in range(len(group) % 2, most + 1, 2):
        for rest in combinations(group[::-1], moving):
            pairs = _pair_strangers([i for i in group if i not in rest], met)
            if pairs is not None and (below := _pairs(list(rest[::-1]), groups[1:], met)) is not None:
                return pairs + below
    return None


def _pair_strangers(group: list[int], met: set[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """Return the first pairing of a whole group without a rematch, None if there is none.
    Each entrant takes the next free entrant that it has not met. If there is none, the search undoes its last pair."""
    pairs: list[tuple[int, int, int]] = []  # (first, second, the second's place in `free`)
    free, start = group, 1
    while free:
        place = next((k for k in range(start, len(free)) if (free[0], free[k]) not in met), None)
        if place is not None:
            pairs.append((free[0], free[place], place))
            free, start = free[1:place] + free[place + 1 :], 1
        elif pairs:
            i, j, place = pairs.pop()
            free, start = [i, *free[: place - 1], j, *free[place - 1 :]], place + 1
        else:
            return None
    return [(i, j) for i, j, _ in pairs]
