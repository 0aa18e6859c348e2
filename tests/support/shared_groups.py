"""Three groups, and the ranks that every trainer's integration must give them: the judge scores answers by number."""

from number_judge import Number

from arenarl.rank import Ranker

GROUPS = [
    ("Name a number.", ["3", "9", "7", "1"]),
    ("Name another.", ["5", "5", "2", " "]),
    ("One more?", ["8", "x", "4", "6"]),
]
RANKS = [[2.0, 0.0, 1.0, 3.0], [0.5, 0.5, 2.0, 3.0], [0.0, None, 2.0, 1.0]]
REWARDS = [[1 / 3, 1.0, 2 / 3, 0.0], [5 / 6, 5 / 6, 1 / 3, 0.0], [1.0, None, 0.0, 0.5]]


def judge():
    return Number(silent="x")


def ranker():
    return Ranker(judge(), topology="round_robin")
