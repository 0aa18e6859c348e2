"""What a reward is given and what it returns: the judge with the rules, and the outcome of one rollout group."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from arenarl.config.schema import GroupStageConfig, RewardConfig, TournamentConfig
from arenarl.judges.judge import Judge
from arenarl.judges.verifier import Verifier
from arenarl.system.counters import Summable
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.tournament.ranking import Ranking, midranks, scored_calls
from arenarl.tournament.schedules import DECIMALS
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
