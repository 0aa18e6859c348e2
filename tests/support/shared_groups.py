"""Three groups, and the ranks that every trainer's integration must give them: the judge scores answers by number."""

from arenarl.judges.judge import Judge, Verdict
from arenarl.rank import Ranker

GROUPS = [
    ("Name a number.", ["3", "9", "7", "1"]),
    ("Name another.", ["5", "5", "2", " "]),
    ("One more?", ["8", "x", "4", "6"]),
]
RANKS = [[2.0, 0.0, 1.0, 3.0], [0.5, 0.5, 2.0, 3.0], [0.0, None, 2.0, 1.0]]
REWARDS = [[1 / 3, 1.0, 2 / 3, 0.0], [5 / 6, 5 / 6, 1 / 3, 0.0], [1.0, None, 0.0, 0.5]]


class Number(Judge):
    """Scores an answer by its number; gives no verdict on an answer without one."""

    def __init__(self):
        pass

    def weights(self, query):
        return {"quality": 1.0}

    async def compare(self, query, first, second, repeat=0):
        if not (first.answer.isdigit() and second.answer.isdigit()):
            return None
        scores = tuple({"quality": float(candidate.answer)} for candidate in (first, second))
        return Verdict(scores, lambda dimensions: dimensions["quality"])


def ranker():
    return Ranker(Number(), topology="round_robin")
