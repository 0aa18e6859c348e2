"""Where rollout groups meet the judge: all groups of a step at once, each from its first trajectory on.

`rewards` has the method that `reward.name` names; here are what is common to all of them, and what all steps together
show of the judge.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from arenarl.config.schema import GroupStageConfig, RewardConfig, TournamentConfig
from arenarl.judges.judge import Judge
from arenarl.judges.verifier import Verifier
from arenarl.training.judging import IncomingGroup, Judging
from arenarl.training.rewards import reward_of
from arenarl.training.rewards.group import GroupOutcome, Referee, Tally, rounded
from arenarl.training.rewards.tournament import by_tournament
from arenarl.trajectory import Query, RolloutGroup


class Arena:
    """Judges groups by the method that `reward.name` names; `watch` is called with the tally of all steps so far.

    Rewarding only reads the judge's variances, so that no group of a step depends on which of the others was ranked
    before it; `learn` comes after.
    """

    def __init__(
        self,
        judge: Judge,
        reward: RewardConfig,
        tournament: TournamentConfig,
        group_stage: GroupStageConfig,
        verifier: Verifier,
        seed: int,
        watch: Callable[[Tally], None] = lambda tally: None,
    ):
        self.referee = Referee(judge, reward, tournament, group_stage, verifier, seed)
        self.watch = watch
        self._reward_group = reward_of(reward.name).reward_group
        self._tally = Tally()

    def begin(self, queries: Sequence[Query], group_size: int) -> Judging[GroupOutcome]:
        """Judge a step's groups from now on, as their trajectories are handed over.
        Outcomes are those of judging the complete groups."""
        return self._judge([IncomingGroup(query, group_size) for query in queries])

    def reward_groups(self, groups: Sequence[RolloutGroup]) -> list[GroupOutcome]:
        """Rewards of complete groups."""
        return self._judge([IncomingGroup.of(group) for group in groups]).outcomes()

    def _judge(self, groups: Sequence[IncomingGroup]) -> Judging[GroupOutcome]:
        tally = self._tally

        async def reward(group: IncomingGroup) -> GroupOutcome:
            nonlocal tally
            outcome = await self._reward_group(self.referee, group)
            if self.referee.reward.tournament_if_equal:
                outcome = await self._else_tournament(outcome, group)
            tally += outcome.tally
            self.watch(tally)
            return outcome

        return Judging(groups, reward)

    async def _else_tournament(self, outcome: GroupOutcome, incoming: IncomingGroup) -> GroupOutcome:
        """The outcome, unless all rewards of the group are equal: then the tournament's (Reasoning Arena).
        A reward that is missing for want of a verdict is not known to be equal."""
        trajectories = (await incoming.complete()).trajectories
        rewards = {
            value for value, one in zip(rounded(outcome.rewards_G), trajectories, strict=True) if not one.is_void
        }
        if len(rewards - {None}) > 1 or (None in rewards and outcome.failed_calls):
            return outcome
        ranked = await by_tournament(self.referee, incoming)
        calls, failed = outcome.judge_calls + ranked.judge_calls, outcome.failed_calls + ranked.failed_calls
        return replace(ranked, correct_G=outcome.correct_G, judge_calls=calls, failed_calls=failed)

    def count(self, tallies: Sequence[Tally]) -> None:
        """Add a step's groups, those of all processes, to the tally."""
        self._tally = sum(tallies, self._tally)
        self.watch(self._tally)

    def learn(self, group_size: int, calls_by_group: Sequence[Sequence[tuple[int, int, float, float]]]) -> None:
        """Add a step's scored calls, group by group in the order of the batch, to what is known of the judge."""
        for calls in calls_by_group:
            self.referee.variances.observe(group_size, calls)

    def judge_metrics(self) -> dict[str, float]:
        """What the scores of the last few groups show of the judge, as standard deviations; empty without matches."""
        variances = self.referee.variances
        parts = {"quality": variances.quality, "noise": variances.noise, "shared": variances.shared}
        return {f"judge/sigma_{name}": math.sqrt(value) for name, value in parts.items()} if variances.score_df else {}
