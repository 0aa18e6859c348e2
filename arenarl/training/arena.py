"""Judge rollout groups: all groups of a step at once, each from its first trajectory on.

`rewards` holds the method that `reward.name` names. This module holds what is common to all methods: the fallback to a
tournament, the tally of judge calls, and the judge's variances over all steps.
"""

import math
from collections.abc import Callable, Iterable, Sequence
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
    """Judges groups by the method that `reward.name` names; calls `watch` with the tally of all steps so far.

    Rewarding only reads the judge's variances and the evolving rubrics, so a group's rewards do not depend on the order
    in which a step's groups are ranked. `learn` updates both afterwards.
    """

    def __init__(
        self, judge: Judge, reward: RewardConfig, tournament: TournamentConfig, group_stage: GroupStageConfig,
        verifier: Verifier, seed: int, watch: Callable[[Tally], None] = lambda tally: None,
    ):  # fmt: skip
        self.referee = Referee(judge, reward, tournament, group_stage, verifier, seed)
        self.watch = watch
        self._reward_group = reward_of(reward.name).reward_group
        self._tally = Tally()

    def begin(self, queries: Sequence[Query], group_size: int) -> Judging[GroupOutcome]:
        """Start to judge a step's groups while their trajectories are handed over."""
        return self.judge([IncomingGroup(query, group_size) for query in queries])

    def reward_groups(self, groups: Sequence[RolloutGroup]) -> list[GroupOutcome]:
        """Judge complete groups and return their outcomes."""
        return self.judge([IncomingGroup.of(group) for group in groups]).outcomes()

    def judge(self, groups: Sequence[IncomingGroup]) -> Judging[GroupOutcome]:
        """Start to judge groups that are complete or still incoming."""
        tally = self._tally

        async def reward(group: IncomingGroup) -> GroupOutcome:
            nonlocal tally
            outcome = await self._reward_group(self.referee, group)
            if self.referee.reward.tournament_if_equal:
                outcome = await self._tournament_if_equal(outcome, group)
            tally += outcome.tally
            self.watch(tally)
            return outcome

        return Judging(groups, reward)

    async def _tournament_if_equal(self, outcome: GroupOutcome, incoming: IncomingGroup) -> GroupOutcome:
        """Return the outcome, or the tournament's if all rewards of the group are equal (Reasoning Arena).

        If a verdict is missing, the rewards do not count as equal.
        """
        pairs = zip(rounded(outcome.rewards_G), (await incoming.complete()).trajectories, strict=True)
        rewards = {reward for reward, trajectory in pairs if not trajectory.is_void}
        if len(rewards - {None}) > 1 or (None in rewards and outcome.failed_calls):
            return outcome
        ranked = await by_tournament(self.referee, incoming)
        calls, failed = outcome.judge_calls + ranked.judge_calls, outcome.failed_calls + ranked.failed_calls
        return replace(ranked, correct_G=outcome.correct_G, judge_calls=calls, failed_calls=failed)

    def count(self, tallies: Sequence[Tally]) -> None:
        """Add the tallies of a step's groups, from all processes, to the total."""
        self._tally = sum(tallies, self._tally)
        self.watch(self._tally)

    def learn(
        self, group_size: int, calls_by_group: Sequence[Sequence[tuple[int, int, float, float]]],
        rubrics: Iterable[tuple[str, dict[str, float] | None]] = (),
    ) -> None:  # fmt: skip
        """Update the judge's variances with a step's scored calls, in the batch's order of groups. Also update the
        evolving rubrics with the rubrics that each query keeps."""
        for calls in calls_by_group:
            self.referee.variances.observe(group_size, calls)
        self.referee.rubrics |= {query_id: kept for query_id, kept in rubrics if kept is not None}

    def judge_metrics(self) -> dict[str, float]:
        """Return the judge's standard deviations over the last few groups; empty without matches."""
        variances = self.referee.variances
        parts = {"quality": variances.quality, "noise": variances.noise, "shared": variances.shared}
        return {f"judge/sigma_{name}": math.sqrt(value) for name, value in parts.items()} if variances.score_df else {}
