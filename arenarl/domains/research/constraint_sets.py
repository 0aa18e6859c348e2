"""Which facts a question tells of a hidden entity: K(v) of Eq.
3, InfoAgent, few entities fit, and a shallow retriever misses this one.

The paper samples K, lets o3 try, and drops the facts by which it succeeds. Here the number of entities that fit is
known exactly, so K grows greedily by the fact that leaves fewest, and a fact by which BM25 finds the entity is dropped.
"""

import random
from collections.abc import Callable

from arenarl.domains.research.descriptions import Space
from arenarl.domains.research.fuzzification import Clue


def choose_clues(
    space: Space,
    pool: list[Clue],
    fits: set[str],
    most: int,
    rng: random.Random,
    is_found: Callable[[list[Clue]], bool] | None = None,
) -> list[Clue]:
    """At most `most` of the vague facts in `pool`, so that few entities fit besides the hidden one. Eq. 3, InfoAgent.

    Args:
        fits: who fits before any clue, by noun and links.
        is_found: whether the shallow retriever finds the hidden one by these clues; None: there is none to avoid.
    """
    rng.shuffle(pool)
    chosen: list[Clue] = []
    while len(fits) > 1 and pool and len(chosen) < most:
        clue = min(pool, key=lambda one: len(fits & space.meeting(one)))
        pool.remove(clue)
        left = fits & space.meeting(clue)
        if len(left) == len(fits):
            break
        if is_found is None or not is_found([*chosen, clue]):
            chosen.append(clue)
            fits = left
    return chosen
