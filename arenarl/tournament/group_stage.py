"""Tournament-GRPO's tournament: groups judged whole, their winners go on and score points,
all of it repeated (Algorithm 1 there).

The topology `group_stage` of `play.py`. A judge call shows a group and names its best, so there are no pairs, no scores
and no second order: order bias is met by drawing who is shown where. Where the paper is silent:

- Sizes that do not divide (the paper's do): as few groups as hold all, as even as possible. A group of at most
  `winners` goes on whole without a call and scores as winners do (Eq. 5): points count the rounds survived. Otherwise
  even a perfect judge would not always put the best first.
- Lots are drawn ahead, for the winners' seats instead of their names. A group is judged as soon as its own members are
  known, and who meets whom depends on the verdicts but not on when they came.
- A call without a verdict voids its repeat: nobody goes on from it, and points won elsewhere in that repeat would
  favour those who were judged. The complete repeats are counted; without one, the group is unranked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import accumulate, chain, pairwise
from math import isfinite
from random import Random

from arenarl.system.seeds import stable_seed
from arenarl.tournament.calls import attempt
from arenarl.tournament.ranking import Ranking, rank_trajectories
from arenarl.tournament.schedules import DECIMALS, Standing, check_parameters

Choose = Callable[[tuple[int, ...], int], Awaitable[Sequence[int] | None]]
Seat = tuple[int, int]  # (entrant, calls that its place waited for, one after the other)


@dataclass(frozen=True)
class GroupStage:
    """The parameters M, G, K_win, K_final and omega of Algorithm 1, Tournament-GRPO;
    the defaults are the best row of Table 2.

    A win in round t is worth `weights[t]`, in later rounds the last of them; the paper has 1 throughout (4.1). Raises
    ValueError where Algorithm 1 says nothing or does not end.
    """

    repeats: int = 8
    group: int = 4
    winners: int = 2
    final: int = 2
    weights: Sequence[float] = (1.0,)

    def __post_init__(self):
        if self.repeats < 1:
            raise ValueError(f"repeats={self.repeats}: play at least one tournament")
        if not 1 <= self.winners < self.group:
            allowed = f"must be from 1 to group-1={self.group - 1}, or a call would decide nothing"
            raise ValueError(f"winners={self.winners}: {allowed}")
        if self.final < self.winners:
            allowed = f"must be at least winners={self.winners}, or no round would ever be the last"
            raise ValueError(f"final={self.final}: {allowed}")
        if not self.weights or not all(isfinite(weight) and weight > 0 for weight in self.weights):
            allowed = "name the points of a win, above 0, for at least the first round"
            raise ValueError(f"weights={list(self.weights)}: {allowed}")

    def draw_rounds(self, size: int, seed: int) -> list[list[list[int]]]:
        """The lots of one repeat: rounds of groups of places.
        Place p is entrant p, after the first round the last one's p-th winner.

        >>> GroupStage(group=2, winners=1, final=1).draw_rounds(5, seed=0)
        [[[3, 4], [0, 1], [2]], [[1, 2], [0]], [[1, 0]]]
        """
        rng = Random(seed)
        rounds = []
        while size > self.final:
            lots = rng.sample(range(size), size)
            cuts = accumulate(self.group_sizes(size), initial=0)
            rounds.append([lots[start:stop] for start, stop in pairwise(cuts)])
            size = sum(min(len(drawn), self.winners) for drawn in rounds[-1])
        return rounds

    def group_sizes(self, size: int) -> list[int]:
        """As few groups as hold all, as even as possible; filled one by one if evenly none would be above `winners`.

        >>> (
        ...     [GroupStage(group=4, winners=2).group_sizes(size) for size in (8, 9)],
        ...     GroupStage(group=4, winners=3, final=3).group_sizes(6),
        ... )
        ([[4, 4], [3, 3, 3]], [4, 2])
        """
        count = -(-size // self.group)
        even = [size // count + (k < size % count) for k in range(count)]
        filled = [self.group] * (size // self.group) + [size % self.group]
        return even if even[0] > self.winners else filled


@dataclass(frozen=True)
class GroupCall:
    """One judge call: `winners` among the trajectories `shown`, both in the order shown;
    None, and why, if there was no verdict.

    `round` counts the calls, one after the other, that it waited for.
    """

    shown: tuple[int, ...]
    winners: tuple[int, ...] | None
    repeat: int
    round: int
    error: str | None = None


@dataclass(frozen=True)
class GroupStageRanking(Ranking):
    """A ranking by points over all complete repeats; `group_calls`, sorted by repeat and round,
    stand in for the matches."""

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

    @property
    def failed_calls(self) -> int:
        return len(self.failed_matches)


async def play_group_stage(
    group_size: int,
    members: list[list[int]],
    choose: Choose,
    seed: int,
    limit: AbstractAsyncContextManager,
    timeout_s: float | None,
    **params,
) -> GroupStageRanking:
    """Rank a group of trajectories by the points that they win in repeated tournaments of groups.
    Algorithm 1, Tournament-GRPO.

    `choose(indices, winners)` is one judge call that shows the trajectories `indices` in that order and returns the
    indices of the best `winners` of them, in any order, or None. What it raises, a call longer than `timeout_s` and a
    wrong answer are no verdict either; `failed_matches` keeps the reasons. `members` are the trajectories of each
    entrant (`group_entrants`), `params` the fields of `GroupStage`. At most `final` entrants play nothing and tie, as
    Algorithm 1 has it.

    Raises ValueError for parameters that do not exist or cannot work.

    >>> from arenarl.tournament import run_tournament
    >>> async def choose(indices, winners):
    ...     return sorted(indices)[:winners]
    >>> run_tournament("group_stage", 4, choose, repeats=3, group=2, winners=1, final=1).scores_G
    [6.0, 3.0, 0.0, 0.0]
    """
    check_parameters("group_stage", [field.name for field in fields(GroupStage)], params)
    stage = GroupStage(**params)
    calls: list[GroupCall] = []

    async def judge(shown: tuple[int, ...], repeat: int, waited: int) -> GroupCall:
        async with limit:
            read = partial(_read_winners, shown, stage.winners)
            winners, error = await attempt(partial(choose, shown, stage.winners), read, timeout_s)
        return GroupCall(shown, winners, repeat, waited, error)

    async def meet(places: list[tuple[asyncio.Future, int]], repeat: int) -> list[Seat] | None:
        """Who goes on from a group, once the groups that its members come from are decided; None without a verdict."""
        before = [await sent_on for sent_on, _ in places]
        if None in before:
            return None
        seats = [sent_on[k] for sent_on, (_, k) in zip(before, places, strict=True)]
        if len(seats) <= stage.winners:
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
        for groups in stage.draw_rounds(len(members), stable_seed(seed, repeat)):
            rounds.append([tasks.create_task(meet([places[p] for p in drawn], repeat)) for drawn in groups])
            drawn = zip(rounds[-1], groups, strict=True)
            places = [(task, k) for task, group in drawn for k in range(min(len(group), stage.winners))]
        return rounds

    async with asyncio.TaskGroup() as tasks:
        played = [start(repeat) for repeat in range(stage.repeats)]
    results = [[[task.result() for task in groups] for groups in rounds] for rounds in played]
    calls.sort(key=lambda call: (call.repeat, call.round, call.shown))
    standings = _standings(len(members), results, stage.weights)
    return GroupStageRanking(*rank_trajectories(group_size, members, standings), [], group_calls=calls)


def _read_winners(shown: tuple[int, ...], winners: int, reply: Sequence[int]) -> tuple[int, ...]:
    if len(reply) != winners or len(set(reply)) != winners or not set(reply) <= set(shown):
        raise ValueError(f"choose must return {winners} of {list(shown)} or None, not {reply!r}")
    return tuple(g for g in shown if g in reply)


def _standings(
    size: int, results: list[list[list[list[Seat] | None]]], weights: Sequence[float]
) -> list[Standing | None]:
    """Points over the complete repeats (Eq. 5, Tournament-GRPO), None for all if there is none."""
    complete = [rounds for rounds in results if all(None not in groups for groups in rounds)]
    points = [0.0] * size
    for rounds in complete:
        for t, groups in enumerate(rounds):
            for entrant, _ in chain.from_iterable(groups):
                points[entrant] += weights[min(t, len(weights) - 1)]
    return [Standing.of_score(round(total, DECIMALS)) if complete else None for total in points]
