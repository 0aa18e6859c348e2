"""Swiss system: everyone plays every round, against someone with about the same record. Section 4.5, ArenaRL.

The rounds played are read off the results, which come in order: no round can start before the last one is over. The
paper leaves open: draws (half a point each), byes (a point, and no opponent), failed matches (no point, and the round
does not count for the two), and whom to pair where score groups are odd or have met (a maximum-weight matching, lots
among equals).
"""

from arenarl.tournament.schedules import DECIMALS, Pairing, Results, Standing, Topology


class Swiss(Topology):
    """ceil(log2 N) rounds of floor(N/2) matches, ranked by points, then by the sum of the opponents' (Buchholz).

    The best scores are paired with each other as far as that leaves everyone an opponent they have not met, which with
    so few rounds they all have. The bye goes to the lowest-scored that had none yet. A perfect judge puts the true best
    first, alone with a full score. Where matches failed, both figures are taken per round that counts; points are the
    reported score.
    """

    @property
    def rounds(self) -> int:
        """ceil(log2 N)"""
        return (self.size - 1).bit_length()

    def ready(self, results: Results) -> list[Pairing]:
        done, has_begun = divmod(len(results) // 2, self.size // 2)
        if has_begun or done == self.rounds:
            return []
        return [Pairing(i, j, done) for i, j in self._closest_pairs(results)]

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

    def _closest_pairs(self, results: Results) -> list[tuple[int, int]]:
        """Pair off everyone with nobody they have met, and the closest in points; if one is left, with the next bye.

        Gaps count by their square, twice for an entrant above the gap that had a bye, and any gap below a higher score
        counts more than all those below lower ones.
        """
        import networkx  # only here: it takes half a second to load

        points, byes = self._points(results), self._byes(results)
        bye = self.size  # one more node; the others are places in the lots, so that renaming entrants changes nothing
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
