"""A member of the group as everybody's reference for once: what BRPO (Writing-Zero, arXiv 2506.00103) takes its rewards from."""

from arenarl.tournament.schedules import Pairing, Results, Standing, Topology


class RandomReference(Topology):
    """Everyone meets one entrant, drawn by lot, N-1 matches; ranked by the outcome: 1 for a win, -1 for a loss, 0 for a draw and the reference.

    A perfect judge tells who is better than the reference, and no more.
    """

    def ready(self, results: Results) -> list[Pairing]:
        return [] if results else [Pairing(self.lots[0], i, 0) for i in self.lots[1:]]

    def standings(self, results: Results) -> list[Standing | None]:
        reference, others = self.lots[0], self.lots[1:]
        signs = {i: _sign(*scores) for i in others if (scores := results.get((i, reference)))}
        if signs:
            signs[reference] = 0.0
        return [Standing.of_score(signs[i]) if i in signs else None for i in range(self.size)]


def _sign(own: float, others: float) -> float:
    return float((own > others) - (own < others))
