"""The judge calls that a tournament is sure to make, started while its group is still being generated.

Stands between the rollouts, whose trajectories end one by one, and `tournament.py`, which wants to know all entrants: it asks for a
call, and finds it under way or done. No call is started that the tournament would not make, so ranks, scores and the number of
calls are those of judging afterwards. Needs only the standard library.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from itertools import combinations
from typing import Any

from arenarl.tournament.calls import within


def sure_calls(surely_meets: str, entered: Mapping[int, Hashable | None], bidirectional: bool) -> list[tuple[int, int]]:
    """The calls (shown first, shown second) that a tournament makes whatever the rows that have not entered turn out to be.

    `entered`: row -> what names the entrant, equal for identical trajectories, and None for an invalid one. The anchor is the first
    valid row, so it is known once all rows before it are. Asked in one order only, a pair shows the lower row first: that is known
    once all rows before it are, as one of them could be identical with the other entrant of the pair.

    >>> sure_calls("anchor", {0: None, 1: "a", 3: "b", 4: "a"}, bidirectional=False)
    [(1, 3)]
    >>> sure_calls("anchor", {1: "a", 3: "b"}, bidirectional=False)  # row 0 may become the anchor
    []
    >>> sure_calls("everyone", {1: "a", 3: "b"}, bidirectional=True)
    [(1, 3), (3, 1)]
    """
    first_rows: dict[Hashable, int] = {}
    for row in sorted(entered):
        if entered[row] is not None:
            first_rows.setdefault(entered[row], row)
    rows = list(first_rows.values())
    known = next(row for row in range(len(entered) + 1) if row not in entered)  # below it, all rows have entered
    if surely_meets == "anchor":
        pairs = [(rows[0], row) for row in rows[1:] if rows[0] < known]
    elif surely_meets == "everyone":
        pairs = [(i, j) for i, j in combinations(rows, 2) if bidirectional or i < known]
    else:
        pairs = []
    return pairs + [(j, i) for i, j in pairs] if bidirectional else pairs


class EarlyCalls:
    """The calls of one tournament: `enter` starts those that have become sure, `compare` is what the tournament then asks.

    Args:
        surely_meets: of the topology.
        ask: one judge call about two rows that have entered.
        timeout_s: as in `play_tournament`, counted from the start of each call.
    """

    def __init__(self, surely_meets: str, ask: Callable[[int, int], Awaitable[Any]], bidirectional: bool, timeout_s: float | None):
        self.surely_meets, self.ask, self.bidirectional, self.timeout_s = surely_meets, ask, bidirectional, timeout_s
        self.entered: dict[int, Hashable | None] = {}
        self._under_way: dict[tuple[Hashable, Hashable], asyncio.Task] = {}  # by the entrants shown first and second

    def enter(self, row: int, entrant: Hashable | None) -> None:
        self.entered[row] = entrant
        for i, j in sure_calls(self.surely_meets, self.entered, self.bidirectional):
            shown = self.entered[i], self.entered[j]
            if shown not in self._under_way:
                self._under_way[shown] = asyncio.create_task(within(self.timeout_s, partial(self.ask, i, j)))

    async def compare(self, i: int, j: int) -> Any:
        """What the call replies, which may have been about trajectories identical with i and j."""
        return await (self._under_way.get((self.entered[i], self.entered[j])) or self.ask(i, j))
