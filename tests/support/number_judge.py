"""A judge of a user's own: it scores answers by their number. Imports nothing of the training stack."""

from arenarl.judges.judge import Judge, Verdict


class Number(Judge):
    """Scores an answer by its number; no verdict on a pair that contains `silent`."""

    def __init__(self, silent=None):
        self.silent = silent

    def weights(self, query):
        return {"quality": 1.0}

    async def compare(self, query, first, second, repeat=0):
        if self.silent in (first.answer, second.answer):
            return None
        scores = tuple({"quality": float(trajectory.answer)} for trajectory in (first, second))
        return Verdict(scores, lambda dimensions: dimensions["quality"])

    async def choose(self, query, trajectories, winners, repeat=0):
        return sorted(range(len(trajectories)), key=lambda i: -float(trajectories[i].answer))[:winners]
