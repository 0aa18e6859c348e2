"""The start times of matches, on a virtual clock: no slot is idle while a call is ready, and groups end in time."""

import asyncio
from random import Random

import pytest
from virtual_clock import run_on_virtual_clock

from arenarl.tournament.play import play_tournament
from arenarl.tournament.topologies import TOPOLOGIES

each_topology = pytest.mark.parametrize("topology", TOPOLOGIES)


class Limit(asyncio.Semaphore):
    """A semaphore that counts the waiting calls."""

    waiting = 0

    async def acquire(self):
        self.waiting += 1
        try:
            return await super().acquire()
        finally:
            self.waiting -= 1


def rank_groups(topology, groups, size, slots, delay_of):
    """Return (rankings, seconds) of groups that share `slots`, with a noisy judge.
    Fails if a slot is idle while a call waits."""
    limit, running = Limit(slots), 0

    def judge_of(group):
        async def compare(i, j):
            nonlocal running
            running += 1
            rng = Random(f"{group} {min(i, j)} {max(i, j)}")
            await asyncio.sleep(delay_of(rng))
            running -= 1
            first, second = size - i + rng.gauss(0, 3), size - j + rng.gauss(0, 3)
            return (first, second) if i < j else (second, first)

        return compare

    def no_slot_is_idle():
        assert running == slots or limit.waiting == 0, f"{limit.waiting} calls wait, {slots - running} slots are idle"

    async def main():
        plays = (play_tournament(topology, size, judge_of(group), seed=group, limit=limit) for group in range(groups))
        return await asyncio.gather(*plays)

    return run_on_virtual_clock(main(), no_slot_is_idle)


@each_topology
def test_eight_groups_of_16_at_concurrency_8_end_within_5_percent_of_the_bound(topology):
    """The bound: the longest chain of matches, or all calls on all slots."""
    rankings, seconds = rank_groups(topology, 8, 16, 8, lambda rng: 1.0)
    calls, critical_path = zip(*((ranking.judge_calls, ranking.critical_path) for ranking in rankings), strict=True)
    assert seconds <= 1.05 * max(*critical_path, sum(calls) / 8)


@each_topology
def test_no_slot_is_idle_while_a_call_is_ready_whatever_the_delays(topology):
    for size in (2, 5, 16, 17):
        rank_groups(topology, 5, size, 7, lambda rng: rng.choice([0.1, 1, 1, 5]))


@each_topology
def test_without_a_limit_a_group_takes_as_long_as_its_critical_path(topology):
    """The brackets of double elimination interleave: 16 entrants need 8 rounds, not 4 + 6 + 1."""
    for size in (2, 3, 5, 8, 13, 16, 17):
        ((ranking,), seconds) = rank_groups(topology, 1, size, 1000, lambda rng: 1.0)
        assert seconds == pytest.approx(ranking.critical_path)
        assert (topology, size) != ("double_elimination", 16) or seconds <= 8
