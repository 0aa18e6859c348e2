"""Judges for tournaments under test."""

from random import Random


def perfect(qualities):
    """A judge whose scores are the qualities."""

    async def compare(i, j):
        return qualities[i], qualities[j]

    return compare


def scripted(half_scores, failed=()):
    """A judge with the same scores for a pair in both orders, and no verdict for the pairs in `failed`."""

    async def compare(i, j):
        if {i, j} in failed:
            return None
        return half_scores[i, j] if (i, j) in half_scores else half_scores[j, i][::-1]

    return compare


def noisy(name_of, seed=0, failure_rate=0.0):
    """A judge with intransitive scores that depend only on the names of the trajectories, not on their indices."""

    async def compare(i, j):
        pair = Random(f"{seed} {name_of[i]} {name_of[j]}")
        scores = pair.uniform(0, 10), pair.uniform(0, 10)
        return None if pair.random() < failure_rate else scores

    return compare
