"""Parts that all rewards share: the types `Reward`, `Referee` and `GroupOutcome`, and judge calls that start before the
group is complete."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from arenarl.config.schema import Config, GroupStageConfig, RewardConfig, TournamentConfig
from arenarl.judges.judge import Judge, scores_and_detail
from arenarl.judges.verifier import Verifier
from arenarl.system.counters import Summable
from arenarl.system.seeds import stable_seed
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.tournament.play import play_tournament
from arenarl.tournament.ranking import Ranking, midranks, scored_calls
from arenarl.tournament.schedules import DECIMALS
from arenarl.tournament.topologies import surely_meets
from arenarl.training.judging import EarlyCalls, IncomingGroup
from arenarl.trajectory import Trajectory


@dataclass(frozen=True)
class Tally(Summable):
    """Counts of judged groups, matches and calls, printed during RL."""

    groups: int = 0
    matches: int = 0
    ties: int = 0
    failed_calls: int = 0
    calls: int = 0  # including failed ones

    def __str__(self) -> str:
        return f"{self.groups} groups, {self.matches} matches, {self.ties} ties, {self.failed_calls} failed calls"


@dataclass(eq=False)
class Referee:
    """The judge, and the settings that turn its verdicts into rewards. `variances` are the judge's, for rankings by
    scores; `rubrics` are the evolving ones, query id → text → weight."""

    judge: Judge
    reward: RewardConfig
    tournament: TournamentConfig
    group_stage: GroupStageConfig
    verifier: Verifier
    seed: int
    variances: JudgeVariances = field(default_factory=JudgeVariances)
    rubrics: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass
class GroupOutcome:
    """Results of judging one group. Lists are (G,), with None for trajectories without a verdict.

    `correct_G` is empty without a known answer. `scores_G` are the scores from 0 to 10 behind a pointwise reward, and
    empty for other rewards. `parts_G` are the scores from 0 to 1 on the query's dimensions, one list per trajectory,
    and empty for rewards without parts. `rubrics` are those that the query keeps, None for rewards without them.
    """

    rewards_G: list[float | None]
    ranks_G: list[float | None]
    judge_calls: int
    failed_calls: int
    ranking: Ranking | None = field(default=None, repr=False)
    correct_G: list[bool | None] = field(default_factory=list)
    scores_G: list[float | None] = field(default_factory=list)
    parts_G: list[list[float] | None] = field(default_factory=list)
    rubrics: dict[str, float] | None = None

    @property
    def judged_G(self) -> list[float | None]:
        """Mean judge score (G,) of each trajectory, from 0 to 10, pointwise or from matches; None if unscored."""
        if self.scores_G:
            return self.scores_G
        scores_by_row: list[list[float]] = [[] for _ in self.rewards_G]
        for first, second, score_first, score_second in self.scored_calls:
            scores_by_row[first].append(score_first)
            scores_by_row[second].append(score_second)
        return [fmean(scores) if scores else None for scores in scores_by_row]

    @property
    def scored_calls(self) -> list[tuple[int, int, float, float]]:
        """(first, second, score_first, score_second) of each pairwise call; empty for pointwise rewards."""
        return scored_calls(self.ranking.matches) if self.ranking else []

    @property
    def tally(self) -> Tally:
        matches = self.ranking.matches if self.ranking else []
        return Tally(1, len(matches), sum(match.is_tie for match in matches), self.failed_calls, self.judge_calls)


@dataclass(frozen=True)
class Reward:
    """One value of `reward.name`: how a group is rewarded, and its requirements as data for `requirements`."""

    reward_group: Callable[[Referee, IncomingGroup], Awaitable[GroupOutcome]]
    reads: tuple[str, ...] = ()  # dotted keys that only this reward, and others that list them, read
    asks_judge: bool = True
    needs_answers: bool = False  # every query must have a known answer
    adds_format: bool = False  # the reward already includes validity
    has_parts: bool = False  # the reward is a mean over dimensions, whose scores are the outcome's `parts_G`
    plays_topology: bool = False  # plays tournament.topology
    # config -> a fixed topology that the reward plays; it reads that topology's tournament.* parameters
    own_topology: Callable[[Config], str | None] = lambda config: None
    compares: bool = False  # makes pairwise judge calls, in one or both orders (tournament.bidirectional)
    check: Callable[[Config], None] = lambda config: None  # raises UserError for contradictory keys


def valid_of(trajectories: Sequence[Trajectory]) -> list[bool | None]:
    """Return validity (G,); None for void trajectories."""
    return [None if trajectory.is_void else trajectory.valid for trajectory in trajectories]


def first_rows(trajectories: Sequence[Trajectory]) -> list[int | None]:
    """Return each row's first valid row with equal messages (G,), which is judged for it; None if it is invalid."""
    first: dict[str, int] = {}
    return [
        first.setdefault(repr(trajectory.messages), row) if trajectory.valid else None
        for row, trajectory in enumerate(trajectories)
    ]


def rounded(rewards_G: Sequence[float | None]) -> list[float | None]:
    """Round rewards (G,) before comparing them, so that float noise does not break ties."""
    return [None if reward is None else round(reward, DECIMALS) for reward in rewards_G]


def points_of(ranking: Ranking) -> list[float | None]:
    """Return the ranking's scores (G,); all 0 without a match, as for a single entrant."""
    return ranking.scores_G if ranking.matches else [0.0] * len(ranking.scores_G)


def ranked_outcome(rewards_G: list[float | None], ranking: Ranking) -> GroupOutcome:
    return GroupOutcome(rewards_G, ranking.ranks_G, ranking.judge_calls, ranking.failed_calls, ranking)


def rewarded_outcome(rewards_G: list[float | None], judge_calls: int, failed_calls: int, **others) -> GroupOutcome:
    """Return an outcome whose ranks follow from its rewards; equal rewards share their mean rank."""
    return GroupOutcome(rewards_G, midranks(rounded(rewards_G)), judge_calls, failed_calls, **others)


def scored_outcome(
    rewards_G: list[float | None], replies_G: list[list[float | None]], scores_G: Sequence[float | None] = (), **others
) -> GroupOutcome:
    """Return the outcome of one or more judge replies per trajectory; a reply of None counts as a failed call."""
    replies = [reply for of_row in replies_G for reply in of_row]
    return rewarded_outcome(rewards_G, len(replies), replies.count(None), scores_G=list(scores_G), **others)


async def play(
    referee: Referee, incoming: IncomingGroup, topology: str, **options
) -> tuple[list[bool | None], Ranking]:
    """Play the group's tournament; return validity (G,) and the ranking. Void trajectories have no rank.

    Trajectories with equal messages enter once. Calls that are certain to be made start as soon as their trajectories
    have ended; all other calls start with the complete group.
    """
    query, tournament = incoming.query, referee.tournament

    async def ask(i: int, j: int) -> tuple | None:
        first, second = await incoming.trajectory(i), await incoming.trajectory(j)
        with incoming.calling():
            return scores_and_detail(await referee.judge.compare(query, first, second))

    async def choose(indices: tuple[int, ...], winners: int, repeat: int = 0) -> list[int] | None:
        trajectories = [await incoming.trajectory(row) for row in indices]
        with incoming.calling():
            positions = await referee.judge.choose(query, trajectories, winners, repeat)
        row_at = dict(enumerate(indices))  # unlike a list, it raises an error for position -1
        return None if positions is None else [row_at[position] for position in positions]

    calls = EarlyCalls(surely_meets(topology), ask, tournament.bidirectional, tournament.timeout_s)

    async def enter(row: int) -> Trajectory:
        trajectory = await incoming.trajectory(row)
        calls.enter(row, repr(trajectory.messages) if trajectory.valid else None)
        return trajectory

    valid_G = valid_of(await asyncio.gather(*map(enter, range(len(incoming)))))
    options |= {"timeout_s": tournament.timeout_s, "bidirectional": tournament.bidirectional, "valid_G": valid_G}
    ranking = await play_tournament(
        topology,
        len(incoming),
        choose if topology == "group_stage" else calls.compare,
        seed=stable_seed(referee.seed, query.query_id),
        entrants=[calls.entered[row] for row in range(len(incoming))],
        failures=TimeoutError,  # a judge returns None for a missing verdict; any other error is a bug, and ends the run
        **options,
    )
    if None in valid_G:  # rank again without void trajectories
        pairs = zip(valid_G, ranking.ranks_G, strict=True)
        ranks_G = midranks([None if valid is None or rank is None else -rank for valid, rank in pairs])
        ranking = replace(ranking, ranks_G=ranks_G)
    return valid_G, ranking


async def ask(
    incoming: IncomingGroup, calls: Callable[[Trajectory], list[Awaitable[float | None]]]
) -> tuple[list[bool | None], list[list[float | None]]]:
    """Make the judge calls `calls(trajectory)` for each valid trajectory as it ends; return validity (G,) and replies.

    An invalid trajectory has no replies.
    """

    async def reply(call: Awaitable[float | None]) -> float | None:
        with incoming.calling():
            return await call

    async def replies(row: int) -> list[float | None]:
        trajectory = await incoming.trajectory(row)
        return await asyncio.gather(*map(reply, calls(trajectory))) if trajectory.valid else []

    replies_G = await asyncio.gather(*map(replies, range(len(incoming))))
    return valid_of((await incoming.complete()).trajectories), replies_G
