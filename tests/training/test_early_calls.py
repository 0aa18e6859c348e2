"""Calls started before a group is complete change nothing but the time: same calls, same ranking, whatever enters in whatever order."""

import asyncio
from collections import Counter
from random import Random

import pytest
from virtual_clock import run_on_virtual_clock

from arenarl.tournament.play import play_tournament
from arenarl.tournament.topologies import TOPOLOGIES
from arenarl.training.early_calls import EarlyCalls, sure_calls

each_topology = pytest.mark.parametrize("topology", TOPOLOGIES)
SURE = {"round_robin": "everyone", "anchor": "anchor", "seeded_single_elimination": "anchor"}


class Asked:
    """A judge of entrants that notes what it was asked, and in some calls gives no verdict, raises or is cancelled inside."""

    def __init__(self, entrants, seed):
        self.entrants, self.seed, self.calls = entrants, seed, Counter()

    async def ask(self, i, j):
        shown = self.entrants[i], self.entrants[j]
        self.calls[shown] += 1
        lot = Random(f"{self.seed} {shown}")
        for _ in range(lot.randrange(3)):
            await asyncio.sleep(0)
        scores = lot.uniform(0, 10), lot.uniform(0, 10)
        fate = lot.random()
        if fate < 0.1:
            raise lot.choice([ValueError("no"), asyncio.CancelledError("inside"), TimeoutError("its own")])
        return None if fate < 0.15 else scores


async def play_early(topology, judge, entrants, order, rng, **options):
    """(ranking, calls that were under way before the last row entered)."""
    early = EarlyCalls(TOPOLOGIES[topology].surely_meets, judge.ask, options["bidirectional"], None)
    for row in order:
        before = Counter(judge.calls)
        early.enter(row, entrants[row])
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
    valid_G = [entrant is not None for entrant in entrants]
    return await play_tournament(topology, len(entrants), early.compare, entrants=entrants, valid_G=valid_G, **options), before.total()


@each_topology
@pytest.mark.parametrize("bidirectional", [True, False])
def test_ranking_and_calls_are_those_of_judging_afterwards(topology, bidirectional):
    rng, started_early = Random(topology), 0
    for seed in range(150):
        size = rng.randint(1, 9)
        entrants = [rng.choice([None, *range(2 * size), *range(2 * size)]) for _ in range(size)]  # some invalid, some identical
        order = rng.sample(range(size), size)
        options = {"seed": seed, "bidirectional": bidirectional}
        afterwards, early = Asked(entrants, seed), Asked(entrants, seed)
        valid_G = [entrant is not None for entrant in entrants]
        expected = asyncio.run(play_tournament(topology, size, afterwards.ask, entrants=entrants, valid_G=valid_G, **options))
        ranking, before_the_last = asyncio.run(play_early(topology, early, entrants, order, rng, **options))
        assert ranking == expected, (entrants, order)
        assert early.calls == afterwards.calls and early.calls.total() == ranking.judge_calls
        started_early += before_the_last
    assert (started_early > 100) == (topology in SURE)


def test_only_what_is_sure_is_asked_before_the_group_is_complete():
    entered = {1: "b", 2: None, 4: "b", 3: "c"}
    assert sure_calls("anchor", entered, True) == []  # row 0 may be the anchor
    assert sure_calls("everyone", entered, True) == [(1, 3), (3, 1)]
    assert sure_calls("everyone", entered, False) == []  # row 0 may be identical with row 3 and so be shown first
    assert sure_calls("nobody", {0: "a", 1: "b"}, True) == []
    assert sure_calls("anchor", {0: "c", **entered}, True) == [(0, 1), (1, 0)]  # row 3 is identical with the anchor
    assert sure_calls("anchor", {0: None, **entered}, False) == sure_calls("everyone", {0: None, **entered}, False) == [(1, 3)]
    assert sure_calls("anchor", {}, True) == sure_calls("everyone", {0: None}, True) == []


def test_a_topology_that_says_whom_an_entrant_meets_names_these_matches_at_once():
    for name, topology in TOPOLOGIES.items():
        assert topology.surely_meets == SURE.get(name, "nobody")
        for size in range(2, 9) if name in SURE else []:
            rows = dict(enumerate(range(size)))
            assert {(i, j) for i, j, _ in topology(size).ready({})} == set(sure_calls(topology.surely_meets, rows, False))


def test_the_time_out_of_an_early_call_counts_from_its_start():
    """Each call takes 6 s. Rows 0 and 1 enter at once, row 2 after 4 s: were theirs counted from then, 5 s would be enough."""

    async def ask(i, j):
        await asyncio.sleep(6)
        return 1.0, 2.0

    async def main():
        early = EarlyCalls("anchor", ask, True, 5.0)
        early.enter(0, "a")
        early.enter(1, "b")
        await asyncio.sleep(4)
        early.enter(2, "c")
        return await play_tournament("anchor", 3, early.compare, timeout_s=5.0)

    ranking, seconds = run_on_virtual_clock(main())
    assert [match.error for match in ranking.matches] == ["TimeoutError: no verdict within 5.0 s"] * 2
    assert seconds == 9 and ranking.failed_calls == 4
