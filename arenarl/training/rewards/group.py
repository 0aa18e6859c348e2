"""What all rewards share: what one is, what it is given and returns, and judge calls that begin while trajectories
still come in."""

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
    """How much has been judged: the line that is shown during RL."""

    groups: int = 0
    matches: int = 0
    ties: int = 0
    failed_calls: int = 0
    calls: int = 0  # those that failed included

    def __str__(self) -> str:
        return f"{self.groups} groups, {self.matches} matches, {self.ties} ties, {self.failed_calls} failed calls"


@dataclass(eq=False)
class Referee:
    """The judge, and the rules by which its verdicts become rewards.
    A ranking by scores weighs them by the judge's `variances`."""

    judge: Judge
    reward: RewardConfig
    tournament: TournamentConfig
    group_stage: GroupStageConfig
    verifier: Verifier
    seed: int
    variances: JudgeVariances = field(default_factory=JudgeVariances)


@dataclass
class GroupOutcome:
    """What judging gave one group: `rewards_G` and `ranks_G` are (G,), None where there was no verdict; `correct_G`
    too, where the answer is known, else it is empty. `scores_G`, of a reward that is pointwise, are the scores from 0
    to 10 that it was made of."""

    rewards_G: list[float | None]
    ranks_G: list[float | None]
    judge_calls: int
    failed_calls: int
    ranking: Ranking | None = field(default=None, repr=False)
    correct_G: list[bool | None] = field(default_factory=list)
    scores_G: list[float | None] = field(default_factory=list)

    @property
    def judged_G(self) -> list[float | None]:
        """(G,) from 0 to 10: the mean of what the judge gave each trajectory, alone or beside others;
        None where it scored none."""
        if self.scores_G:
            return self.scores_G
        given_G: list[list[float]] = [[] for _ in self.rewards_G]
        for first, second, score_first, score_second in self.scored_calls:
            given_G[first].append(score_first)
            given_G[second].append(score_second)
        return [fmean(given) if given else None for given in given_G]

    @property
    def scored_calls(self) -> list[tuple[int, int, float, float]]:
        """(first, second, score_first, score_second) of the calls that compared two;
        none where scores are pointwise."""
        return scored_calls(self.ranking.matches) if self.ranking else []

    @property
    def tally(self) -> Tally:
        matches = self.ranking.matches if self.ranking else []
        return Tally(1, len(matches), sum(match.is_tie for match in matches), self.failed_calls, self.judge_calls)


@dataclass(frozen=True)
class Reward:
    """One value of `reward.name`: how a group is rewarded, and what that takes, as data for `requirements`."""

    reward_group: Callable[[Referee, IncomingGroup], Awaitable[GroupOutcome]]
    reads: tuple[str, ...] = ()  # dotted keys that only rewards which name them read
    asks_judge: bool = True
    needs_answers: bool = False  # every query must have a known answer
    adds_format: bool = False  # validity is part of its sum already
    plays_topology: bool = False  # its matches are those of tournament.topology
    # config -> the topology of its own matches, whose tournament.* parameters it reads
    own_topology: Callable[[Config], str | None] = lambda config: None
    compares: bool = False  # some of its judge calls show two trajectories, in tournament.bidirectional orders
    check: Callable[[Config], None] = lambda config: None  # raises UserError for keys that it cannot work with


def valid_of(trajectories: Sequence[Trajectory]) -> list[bool | None]:
    """valid_G; None for a void one."""
    return [None if trajectory.is_void else trajectory.valid for trajectory in trajectories]


def rounded(rewards_G: Sequence[float | None]) -> list[float | None]:
    """Rewards (G,) as they are compared: float noise neither ranks them nor makes a group unequal."""
    return [None if reward is None else round(reward, DECIMALS) for reward in rewards_G]


def ranked_outcome(rewards_G: list[float | None], ranking: Ranking) -> GroupOutcome:
    return GroupOutcome(rewards_G, ranking.ranks_G, ranking.judge_calls, ranking.failed_calls, ranking)


def rewarded_outcome(rewards_G: list[float | None], judge_calls: int, failed_calls: int, **others) -> GroupOutcome:
    """An outcome whose ranks are those of its rewards."""
    return GroupOutcome(rewards_G, midranks(rounded(rewards_G)), judge_calls, failed_calls, **others)


def scored_outcome(
    rewards_G: list[float | None], replies_G: list[list[float | None]], scores_G: Sequence[float | None] = ()
) -> GroupOutcome:
    """The outcome of one reply or several to each trajectory; a reply that is None is a failed call."""
    replies = [reply for replies in replies_G for reply in replies]
    return rewarded_outcome(rewards_G, len(replies), replies.count(None), scores_G=list(scores_G))


async def play(
    referee: Referee, incoming: IncomingGroup, topology: str, **options
) -> tuple[list[bool | None], Ranking]:
    """(valid_G, the group's tournament). Trajectories with the same messages enter once; void ones have no rank.

    Calls that are sure to be made start as soon as their trajectories are there, all others with the complete group.
    """
    query, tournament = incoming.query, referee.tournament

    async def ask(i: int, j: int) -> tuple | None:
        first, second = await incoming.trajectory(i), await incoming.trajectory(j)
        with incoming.calling():
            return scores_and_detail(await referee.judge.compare(query, first, second))

    async def choose(indices: tuple[int, ...], winners: int) -> list[int] | None:
        trajectories = [await incoming.trajectory(row) for row in indices]
        with incoming.calling():
            positions = await referee.judge.choose(query, trajectories, winners)
        row_at = dict(enumerate(indices))  # unlike a sequence it refuses a position of -1
        return None if positions is None else [row_at[position] for position in positions]

    async def enter(row: int) -> Trajectory:
        trajectory = await incoming.trajectory(row)
        calls.enter(row, repr(trajectory.messages) if trajectory.valid else None)
        return trajectory

    calls = EarlyCalls(surely_meets(topology), ask, tournament.bidirectional, tournament.timeout_s)
    valid_G = valid_of(await asyncio.gather(*map(enter, range(len(incoming)))))
    ranking = await play_tournament(
        topology,
        len(incoming),
        choose if topology == "group_stage" else calls.compare,
        seed=stable_seed(referee.seed, query.query_id),
        entrants=[calls.entered[row] for row in range(len(incoming))],
        valid_G=valid_G,
        timeout_s=tournament.timeout_s,
        bidirectional=tournament.bidirectional,
        **options,
    )
    if None in valid_G:
        known = [rank if valid is not None else None for valid, rank in zip(valid_G, ranking.ranks_G, strict=True)]
        ranking = replace(ranking, ranks_G=midranks([None if rank is None else -rank for rank in known]))
    return valid_G, ranking


async def ask(
    incoming: IncomingGroup, calls: Callable[[Trajectory], list[Awaitable[float | None]]]
) -> tuple[list[bool | None], list[list[float | None]]]:
    """(valid_G, the judge's replies to each trajectory's `calls`), made as soon as it is there;
    of an invalid one, none are made."""

    async def reply(call: Awaitable[float | None]) -> float | None:
        with incoming.calling():
            return await call

    async def replies(row: int) -> list[float | None]:
        trajectory = await incoming.trajectory(row)
        return await asyncio.gather(*map(reply, calls(trajectory))) if trajectory.valid else []

    replies_G = await asyncio.gather(*map(replies, range(len(incoming))))
    return valid_of((await incoming.complete()).trajectories), replies_G
