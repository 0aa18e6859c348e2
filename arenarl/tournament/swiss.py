"""The Swiss system: all entrants play each round, against opponents with a similar record. Section 4.5, ArenaRL.

A round starts when the previous round has ended, so the number of results gives the current round. Our rules where the
paper is silent: a draw gives half a point each. A bye gives one point and no opponent. A failed match gives no point,
and the round does not count for its two entrants. A maximum-weight matching chooses the pairs; the random order breaks
ties.
"""

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
        """Pair entrants that have not met and are close in points; with an odd size, also choose the bye.

        The cost of a pair is its squared gap in points, doubled if the higher entrant had a bye. A gap below a higher
        score costs more than all gaps below lower scores together.
        """
        import networkx  # imported late: it takes half a second to load

        points, byes = self._points(results), self._byes(results)
        bye = self.size  # an extra node; other nodes are places in `lots`, so that renaming entrants changes nothing
        lowest = min(points[i] for i in self.lots if i not in byes)
        graph = networkx.Graph()
        for p, i in enumerate(self.lots):
            if self.size % 2 and i not in byes and points[i] == lowest:
                graph.add_edge(p, bye, weight=0)
            for q, j in enumerate(self.lots[:p]):
                if (i, j) not in results:
                    higher = i if points[i] > points[j] else j
                    gap = (points[i] - points[j]) ** 2 * (1 + (higher in byes))
                    graph.add_edge(p, q, weight=-int(4 * gap) * (4 * self.size**3) ** int(2 * points[higher]))
        matching = networkx.max_weight_matching(graph, maxcardinality=True)
        pairs = sorted(sorted(pair) for pair in matching if bye not in pair)
        return [(self.lots[p], self.lots[q]) for p, q in pairs]
