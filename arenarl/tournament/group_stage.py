"""The group stage of Tournament-GRPO (Algorithm 1): the judge picks the best of each group, winners advance and score
points, and the tournament is repeated.

This is the topology `group_stage` of `play.py`. A judge call shows a whole group, not a pair, and returns no scores.
The random order of each group averages out the judge's order bias. Our rules, where the paper is silent:

- Sizes that do not divide evenly: as few groups as possible, with sizes as even as possible. A group of at most
  `winners` entrants advances without a call and scores like winners (Eq. 5), so points count the rounds survived.
  Otherwise even a perfect judge would not always put the best first.
- Groups are drawn in advance, by places of winners and not by entrants. So a group is judged as soon as its
  own members are known, and the pairings do not depend on the time at which verdicts arrive.
- A failed call voids its repeat: no entrant of its group can advance, and points won elsewhere in the repeat would
  favour the entrants that were judged. Only complete repeats count; without any, the group has no ranks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields
from functools import partial
from inspect import signature
from itertools import accumulate, chain, pairwise
from random import Random
from typing import Any

from arenarl.system.seeds import stable_seed
from arenarl.tournament.calls import Failures, as_number, attempt, task_group
from arenarl.tournament.ranking import Ranking, rank_trajectories
from arenarl.tournament.schedules import DECIMALS, Standing, check_fields, check_parameters

Choose = Callable[..., Awaitable[Sequence[int] | None]]
Seat = tuple[int, int]  # (entrant, length of the chain of calls before it)


@dataclass(frozen=True)
class GroupStage:
    """The parameters M, G, K_win, K_final and omega of Algorithm 1, Tournament-GRPO. Defaults: the best row of Table 2.

    A win in round t gives `weights[t]` points; later rounds give the last weight. The paper uses 1 throughout (4.1).
    Raises ValueError for values with which Algorithm 1 is undefined or does not end.
    """

    repeats: int = 8
    group: int = 4
    winners: int = 2
    final: int = 2
    weights: Sequence[float] = (1.0,)

    def __post_init__(self):
        check_fields(self)
        if self.repeats < 1:
            raise ValueError(f"repeats={self.repeats}: play at least one tournament")
        if not 1 <= self.winners < self.group:
            raise ValueError(f"winners={self.winners}: must be from 1 to group-1={self.group - 1}")
        if self.final < self.winners:
            raise ValueError(f"final={self.final}: must be at least winners={self.winners}, or the rounds never end")
        is_listed = isinstance(self.weights, Sequence) and len(self.weights) > 0
        if not is_listed or not all((as_number(weight) or 0) > 0 for weight in self.weights):
            raise ValueError(f"weights={self.weights!r:.200}: must hold the points of a win per round, all above 0")

    @classmethod
    def of(cls, params: dict[str, Any]) -> "GroupStage":
        """Return the stage with these parameters. Raises ValueError for an unknown one too."""
        check_parameters("group_stage", [field.name for field in fields(cls)], params)
        return cls(**params)

    def draw_rounds(self, size: int, seed: int) -> list[list[list[int]]]:
        """Return the random groups of one repeat: rounds of groups of places.

        In the first round place p is entrant p, later the p-th winner of the previous round.

        >>> GroupStage(group=2, winners=1, final=1).draw_rounds(5, seed=0)
        [[[3, 4], [0, 1], [2]], [[1, 2], [0]], [[1, 0]]]
        """
        rng = Random(seed)
        rounds = []
        while size > self.final:
            places = rng.sample(range(size), size)
            cuts = accumulate(self.group_sizes(size), initial=0)
            rounds.append([places[start:stop] for start, stop in pairwise(cuts)])
            size = sum(min(len(group), self.winners) for group in rounds[-1])
        return rounds

    def group_sizes(self, size: int) -> list[int]:
        """Return the sizes of as few groups as possible, as even as possible.

        If no even group would have more than `winners` entrants, groups are filled one after the other instead.

        >>> [GroupStage(group=4, winners=2).group_sizes(size) for size in (8, 9)]
        [[4, 4], [3, 3, 3]]
        >>> GroupStage(group=4, winners=3, final=3).group_sizes(6)
        [4, 2]
        """
        count = -(-size // self.group)
        even = [size // count + (k < size % count) for k in range(count)]
        filled = [self.group] * (size // self.group) + [size % self.group]
        return even if even[0] > self.winners else filled


@dataclass(frozen=True)
class GroupCall:
    """A judge call: the `winners` among the trajectories `shown`, in the order shown; or None and the `error`.
    `round` is the length of the chain of calls that had to end before it."""

    shown: tuple[int, ...]
    winners: tuple[int, ...] | None
    repeat: int
    round: int
    error: str | None = None


@dataclass(frozen=True)
class GroupStageRanking(Ranking):
    """A ranking by points over all complete repeats. `group_calls`, sorted by repeat and round, replace the matches."""

    group_calls: list[GroupCall] = field(default_factory=list)

    @property
    def judge_calls(self) -> int:
        return len(self.group_calls)

    @property
    def critical_path(self) -> int:
        """The length of the longest chain of calls that waited for each other."""
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
    failures: Failures = Exception,
    /,
    **params,
) -> GroupStageRanking:
    """Rank trajectories by their points in repeated group tournaments. Algorithm 1, Tournament-GRPO.

    `choose(indices, winners)` is one judge call. It shows the trajectories in that order and returns the indices of the
    best `winners`, in any order. If it has a parameter `repeat`, it gets the tournament's number, from 0. A judge with
    a seed or a cache uses it, so that two tournaments that seat a group alike get separate verdicts. The call fails if
    it returns None or a wrong answer, raises, or takes longer than `timeout_s`; `failed_matches` holds the reasons.
    `members` holds the trajectories of each entrant (`group_entrants`), `params` the fields of `GroupStage`. A group of
    at most `final` entrants is not judged and ties, as in Algorithm 1.

    Raises ValueError for unknown or invalid parameters.

    >>> from arenarl.tournament import run_tournament
    >>> async def choose(indices, winners):
    ...     return sorted(indices)[:winners]
    >>> run_tournament("group_stage", 4, choose, repeats=3, group=2, winners=1, final=1).scores_G
    [6.0, 3.0, 0.0, 0.0]
    """
    stage = GroupStage.of(params)
    is_numbered = "repeat" in signature(choose).parameters
    calls: list[GroupCall] = []

    async def meet(places: list[tuple[asyncio.Future, int]], repeat: int) -> list[Seat] | None:
        """Wait for the groups of the members, judge them, and return the winners, or None if a verdict is missing."""
        earlier = [await group for group, _ in places]
        if None in earlier:
            return None
        seats = [seats[k] for seats, (_, k) in zip(earlier, places, strict=True)]
        if len(seats) <= stage.winners:
            return seats
        waited = max(waited for _, waited in seats)
        shown = tuple(members[entrant][0] for entrant, _ in seats)
        async with limit:
            read = partial(_read_winners, shown, stage.winners)
            ask = partial(choose, shown, stage.winners, **({"repeat": repeat} if is_numbered else {}))
            winners, error = await attempt(ask, read, timeout_s, failures)
        calls.append(GroupCall(shown, winners, repeat, waited, error))
        return winners and [(entrant, waited + 1) for entrant, _ in seats if members[entrant][0] in winners]

    def start(repeat: int) -> list[list[asyncio.Task]]:
        """Create a task for every group of every round."""
        entry = asyncio.get_running_loop().create_future()
        entry.set_result([(entrant, 0) for entrant in range(len(members))])
        places, rounds = [(entry, k) for k in range(len(members))], []
        for groups in stage.draw_rounds(len(members), stable_seed(seed, repeat)):
            rounds.append([tasks.create_task(meet([places[p] for p in group], repeat)) for group in groups])
            pairs = zip(rounds[-1], groups, strict=True)
            places = [(task, k) for task, group in pairs for k in range(min(len(group), stage.winners))]
        return rounds

    async with task_group() as tasks:
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
    """Return the points over all complete repeats (Eq. 5, Tournament-GRPO); None for all entrants without any."""
    complete = [rounds for rounds in results if all(None not in groups for groups in rounds)]
    points = [0.0] * size
    for rounds in complete:
        for t, groups in enumerate(rounds):
            for entrant, _ in chain.from_iterable(groups):
                points[entrant] += weights[min(t, len(weights) - 1)]
    return [Standing.of_score(round(total, DECIMALS)) if complete else None for total in points]
