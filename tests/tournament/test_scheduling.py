"""When matches start, on a virtual clock: no slot stays idle while a call is ready,
and groups end close to the bound."""

import asyncio
from random import Random

import pytest
from virtual_clock import run_on_virtual_clock

from arenarl.tournament.play import play_tournament
from arenarl.tournament.topologies import TOPOLOGIES

each_topology = pytest.mark.parametrize("topology", TOPOLOGIES)


class Limit(asyncio.Semaphore):
    """Knows how many calls wait."""

    waiting = 0

    async def acquire(self):
        self.waiting += 1
        try:
            return await super().acquire()
        finally:
            self.waiting -= 1


def rank_groups(topology, groups, size, slots, delay_of):
    """(rankings, seconds) of groups that share `slots`, with a noisy judge;
    fails where a slot is idle while a call waits."""
    limit = Limit(slots)
    running = 0

    def judge_of(group):
        async def compare(i, j):
            nonlocal running
            running += 1
            lot = Random(f"{group} {min(i, j)} {max(i, j)}")
            await asyncio.sleep(delay_of(lot))
            running -= 1
            first, second = size - i + lot.gauss(0, 3), size - j + lot.gauss(0, 3)
            return (first, second) if i < j else (second, first)

        return compare

    def no_slot_is_idle():
        assert running == slots or limit.waiting == 0, (
            f"{limit.waiting} calls wait while {slots - running} slots are idle"
        )

    async def main():
        plays = (play_tournament(topology, size, judge_of(group), seed=group, limit=limit) for group in range(groups))
        return await asyncio.gather(*plays)

    return run_on_virtual_clock(main(), no_slot_is_idle)


def bound(rankings, slots, delay):
    """The longest chain, or all calls on all slots: what takes longer."""
    critical_path = max(ranking.critical_path for ranking in rankings)
    return delay * max(critical_path, sum(ranking.judge_calls for ranking in rankings) / slots)


@each_topology
def test_eight_groups_of_16_at_concurrency_8_end_within_a_twentieth_of_the_bound(topology):
    rankings, seconds = rank_groups(topology, 8, 16, 8, lambda lot: 1.0)
    assert seconds <= 1.05 * bound(rankings, 8, 1.0)


@each_topology
@pytest.mark.parametrize("size", [2, 5, 16, 17])
def test_no_slot_is_idle_while_a_call_is_ready_whatever_the_delays(topology, size):
    rank_groups(topology, 5, size, 7, lambda lot: lot.choice([0.1, 1, 1, 5]))


@each_topology
@pytest.mark.parametrize("size", [2, 3, 5, 8, 13, 16, 17])
def test_without_a_limit_a_group_takes_as_long_as_its_critical_path(topology, size):
    ((ranking,), seconds) = rank_groups(topology, 1, size, 1000, lambda lot: 1.0)
    assert seconds == pytest.approx(ranking.critical_path)


def test_the_brackets_of_double_elimination_interleave():
    """Four rounds of winners, six of losers and the final would be 11 in a row;
    the longest chain of 16 entrants is 8."""
    ((ranking,), seconds) = rank_groups("double_elimination", 1, 16, 1000, lambda lot: 1.0)
    assert seconds <= 8
