"""Tournament-GRPO's tournament: groups judged whole, their winners go on and score points, all of it repeated (Algorithm 1 there).

The topology `group_stage` of `tournament.py`. A judge call shows a group and names its best, so there are no pairs, no scores and
no second order: order bias is met by drawing who is shown where. Where the paper is silent:

- Sizes that do not divide (the paper's do): as few groups as hold all, as even as possible. A group of at most `winners` goes on
  whole without a call and scores as winners do (Eq. 5): points count the rounds survived. Otherwise even a perfect judge would
  not always put the best first.
- Lots are drawn ahead, for the winners' seats instead of their names. A group is judged as soon as its own members are known, and
  who meets whom depends on the verdicts but not on when they came.
- A call without a verdict voids its repeat: nobody goes on from it, and points won elsewhere in that repeat would favour those
  who were judged. The complete repeats are counted; without one, the group is unranked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import isfinite
from random import Random

from arenarl.seeds import stable_seed
from arenarl.schedules import DECIMALS, Standing
from arenarl.tournament import Ranking, _entrants, _rank

Choose = Callable[[tuple[int, ...], int], Awaitable[Sequence[int] | None]]
Seat = tuple[int, int]  # (entrant, calls that its place waited for, one after the other)


@dataclass(frozen=True)
class GroupCall:
    """One judge call: `winners` among the trajectories `shown`, both in the order shown; None, and why, if there was no verdict.

    `round` counts the calls, one after the other, that it waited for.
    """

    shown: tuple[int, ...]
    winners: tuple[int, ...] | None
    repeat: int
    round: int
    error: str | None = None


@dataclass(frozen=True)
class GroupStageRanking(Ranking):
    """A ranking by points over all complete repeats; `group_calls`, sorted by repeat and round, stand in for the matches."""

    group_calls: list[GroupCall] = field(default_factory=list)

    @property
    def judge_calls(self) -> int:
        return len(self.group_calls)

    @property
    def critical_path(self) -> int:
        """The longest chain of calls that waited for each other."""
        return max((call.round + 1 for call in self.group_calls), default=0)

    @property
    def failed_matches(self) -> list[GroupCall]:
        return [call for call in self.group_calls if call.winners is None]


async def play_group_stage(
    group_size: int,
    choose: Choose,
    seed: int = 0,
    *,
    entrants: Sequence[Hashable] | None = None,
    valid_G: Sequence[bool] | None = None,
    limit: asyncio.Semaphore | None = None,
    timeout_s: float | None = None,
    repeats: int = 8,
    group: int = 4,
    winners: int = 2,
    final: int = 2,
    weights: Sequence[float] = (1.0,),
) -> GroupStageRanking:
    """Rank a group of trajectories by the points that they win in `repeats` tournaments of groups. Algorithm 1, Tournament-GRPO.

    `choose(indices, winners)` is one judge call that shows the trajectories `indices` in that order and returns the indices of
    the best `winners` of them, in any order, or None. What it raises, a call longer than `timeout_s` and a wrong answer are no
    verdict either; `failed_matches` keeps the reasons. `entrants`, `valid_G` and `limit` are those of `play_tournament`. At most
    `final` entrants play nothing and tie, as Algorithm 1 has it.

    `repeats`, `group`, `winners`, `final` are M, G, K_win, K_final: the defaults are the best row of Table 2. A win in round t is
    worth `weights[t]`, in later rounds the last of them; the paper has 1 throughout (4.1).

    Raises ValueError for parameters that cannot work, a group below 2 or a wrong length.

    >>> async def choose(indices, winners):
    ...     return sorted(indices)[:winners]
    >>> asyncio.run(play_group_stage(4, choose, repeats=3, group=2, winners=1, final=1)).scores_G
    [6.0, 3.0, 0.0, 0.0]
    """
    check_group_stage(repeats, group, winners, final, weights)
    members = _entrants(group_size, entrants, valid_G)
    calls: list[GroupCall] = []

    async def judge(shown: tuple[int, ...], repeat: int, waited: int) -> GroupCall:
        try:
            async with limit or nullcontext(), asyncio.timeout(timeout_s):
                reply = await choose(shown, winners)
            if reply is None:
                return GroupCall(shown, None, repeat, waited, "no verdict")
            return GroupCall(shown, _read_winners(shown, winners, reply), repeat, waited)
        except Exception as error:  # noqa: BLE001 - a judge may fail in any way; the call keeps how
            return GroupCall(shown, None, repeat, waited, f"{type(error).__name__}: {error}")

    async def meet(places: list[tuple[asyncio.Future, int]], repeat: int) -> list[Seat] | None:
        """Who goes on from a group, once the groups that its members come from are decided; None without a verdict."""
        before = [await sent_on for sent_on, _ in places]
        if None in before:
            return None
        seats = [sent_on[k] for sent_on, (_, k) in zip(before, places)]
        if len(seats) <= winners:
            return seats
        waited = max(waited for _, waited in seats)
        call = await judge(tuple(members[entrant][0] for entrant, _ in seats), repeat, waited)
        calls.append(call)
        return call.winners and [(entrant, waited + 1) for entrant, _ in seats if members[entrant][0] in call.winners]

    def start(repeat: int) -> list[list[asyncio.Task]]:
        """A task for every group of every round."""
        entry = asyncio.get_running_loop().create_future()
        entry.set_result([(entrant, 0) for entrant in range(len(members))])
        places, rounds = [(entry, k) for k in range(len(members))], []
        for groups in draw_rounds(len(members), stable_seed(seed, repeat), group, winners, final):
            rounds.append([tasks.create_task(meet([places[p] for p in drawn], repeat)) for drawn in groups])
            places = [(task, k) for task, drawn in zip(rounds[-1], groups) for k in range(min(len(drawn), winners))]
        return rounds

    async with asyncio.TaskGroup() as tasks:
        played = [start(repeat) for repeat in range(repeats)]
    results = [[[task.result() for task in groups] for groups in rounds] for rounds in played]
    ranking = _rank(group_size, members, _standings(len(members), results, weights), [])
    calls.sort(key=lambda call: (call.repeat, call.round, call.shown))
    return GroupStageRanking(ranking.ranks_G, ranking.scores_G, ranking.matches, group_calls=calls)


def draw_rounds(size: int, seed: int, group: int, winners: int, final: int) -> list[list[list[int]]]:
    """The lots of one repeat: rounds of groups of places. Place p is entrant p, after the first round the p-th winner of the last.

    >>> draw_rounds(5, seed=0, group=2, winners=1, final=1)
    [[[3, 4], [0, 1], [2]], [[1, 2], [0]], [[1, 0]]]
    """
    rng = Random(seed)
    rounds = []
    while size > final:
        lots = rng.sample(range(size), size)
        cuts = accumulate(group_sizes(size, group, winners), initial=0)
        rounds.append([lots[start:stop] for start, stop in pairwise(cuts)])
        size = sum(min(len(drawn), winners) for drawn in rounds[-1])
    return rounds


def group_sizes(size: int, group: int, winners: int) -> list[int]:
    """Sizes of as few groups as hold all, as even as possible; filled one by one if evenly none would be above `winners`.

    >>> group_sizes(8, group=4, winners=2), group_sizes(9, group=4, winners=2), group_sizes(6, group=4, winners=3)
    ([4, 4], [3, 3, 3], [4, 2])
    """
    count = -(-size // group)
    even = [size // count + (k < size % count) for k in range(count)]
    filled = [group] * (size // group) + [size % group]
    return even if even[0] > winners else filled


def check_group_stage(repeats: int, group: int, winners: int, final: int, weights: Sequence[float]) -> None:
    """Raises ValueError for parameters with which Algorithm 1 says nothing or does not end."""
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: play at least one tournament")
    if not 1 <= winners < group:
        raise ValueError(f"winners={winners}: must be from 1 to group-1={group - 1}, or a call would decide nothing")
    if final < winners:
        raise ValueError(f"final={final}: must be at least winners={winners}, or no round would ever be the last")
    if not weights or not all(isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(f"weights={list(weights)}: name the points of a win, above 0, for at least the first round")


def _read_winners(shown: tuple[int, ...], winners: int, reply: Sequence[int]) -> tuple[int, ...]:
    if len(reply) != winners or len(set(reply)) != winners or not set(reply) <= set(shown):
        raise ValueError(f"choose must return {winners} of {list(shown)} or None, not {reply!r}")
    return tuple(g for g in shown if g in reply)


def _standings(size: int, results: list[list[list[list[Seat] | None]]], weights: Sequence[float]) -> list[Standing | None]:
    """Points over the complete repeats (Eq. 5, Tournament-GRPO), None for all if there is none."""
    complete = [rounds for rounds in results if all(None not in groups for groups in rounds)]
    points = [0.0] * size
    for rounds in complete:
        for t, groups in enumerate(rounds):
            for seats in groups:
                for entrant, _ in seats:
                    points[entrant] += weights[min(t, len(weights) - 1)]
    points = [round(total, DECIMALS) for total in points]
    return [Standing((total,), total) if complete else None for total in points]
