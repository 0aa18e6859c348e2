"""Swiss system: everyone plays every round, against someone with about the same record. Section 4.5, ArenaRL.

The rounds played are read off the results, which come in order: no round can start before the last one is over.
The paper leaves open: draws (half a point each), byes (a point, and no opponent), failed matches (no point, and the round does
not count for the two), and pairing inside a score group (by lot).
"""

from arenarl.schedules import DECIMALS, Pairing, Results, Standing, Topology


class Swiss(Topology):
    """ceil(log2 N) rounds of floor(N/2) matches, ranked by share of points, then by the opponents' (Buchholz).

    The best scores are paired with each other as far as that leaves everyone an opponent they have not met: so a perfect judge
    puts the true best first, alone with a full score. With so few rounds no pair ever has to meet again.
    """

    @property
    def rounds(self) -> int:
        """ceil(log2 N)"""
        return (self.size - 1).bit_length()

    def ready(self, results: Results) -> list[Pairing]:
        done, has_begun = divmod(len(results) // 2, self.size // 2)
        if has_begun or done == self.rounds:
            return []
        points = self._points(results)
        resting = self._next_bye(results, points)
        playing = [i for i in self.lots if i != resting]
        return [Pairing(i, j, done) for i, j in closest_pairs(playing, points, results)]

    def standings(self, results: Results) -> list[Standing | None]:
        points = self._points(results)
        byes = self._byes(results)
        standings: list[Standing | None] = []
        for i in range(self.size):
            met = [j for j in range(self.size) if results.get((i, j))]
            counted = len(met) + (i in byes)
            buchholz = sum(points[j] for j in met)
            key = (round(points[i] / counted, DECIMALS), round(buchholz / counted, DECIMALS)) if met else ()
            standings.append(Standing(key, points[i]) if met else None)
        return standings

    def _points(self, results: Results) -> list[float]:
        byes = self._byes(results)
        points = [float(i in byes) for i in range(self.size)]
        for (i, _), scores in results.items():
            if scores:
                points[i] += 1.0 if scores[0] > scores[1] else 0.5 * (scores[0] == scores[1])
        return points

    def _byes(self, results: Results) -> list[int]:
        """Who sat out each round played."""
        if self.size % 2 == 0:
            return []
        played = [i for i, _ in results]
        a_round = self.size - 1
        rounds = [set(played[k : k + a_round]) for k in range(0, len(played), a_round)]
        return [next(i for i in self.lots if i not in playing) for playing in rounds]

    def _next_bye(self, results: Results, points: list[float]) -> int | None:
        """The lowest-scored that had no bye yet, by lot among equals; None where all can play."""
        rested = self._byes(results)
        return min((i for i in self.lots if i not in rested), key=points.__getitem__) if self.size % 2 else None


def closest_pairs(entrants: list[int], points: list[float], results: Results) -> list[tuple[int, int]]:
    """Pair off all entrants, none that have met, with the least sum of squared differences in points."""
    import networkx  # only here: it takes half a second to load

    graph = networkx.Graph()
    places = range(len(entrants))  # not the entrants themselves, so that renaming them changes nothing
    for p in places:
        for q in places[p + 1 :]:
            i, j = entrants[p], entrants[q]
            if (i, j) not in results:
                graph.add_edge(p, q, weight=-((2 * (points[i] - points[j])) ** 2))
    pairs = sorted(sorted(pair) for pair in networkx.max_weight_matching(graph, maxcardinality=True))
    return [(entrants[p], entrants[q]) for p, q in pairs]
