"""Rollout groups → rewards: the method that a config names, and what all steps together tell of the judge.

For ArenaRL a group plays its tournament and the ranks become rewards (Eqs. 3-6, `ranked_rewards`); the paper's
baselines ask the judge for a pointwise score instead (Section 6.1, `scored_rewards`). Tournament-GRPO and the baselines
of its Appendix F are further rows of `REWARDS`, and so are rivals (docs/methods.md) and the correctness of an answer
that is known (InfoAgent); a function of one's own is none of them. All groups of a step run at once, each from its
first trajectory on. A trajectory without a verdict gets no reward; nor does one that a tool's crash made void, and the
others are ranked without it.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from arenarl.config.schema import GroupStageConfig, RewardConfig, TournamentConfig
from arenarl.domains.known_answers import entity_recall, has_answer
from arenarl.judges.judge import Judge
from arenarl.judges.verifier import Verifier
from arenarl.tournament.ranking import midranks
from arenarl.training.judging import IncomingGroup, Judging
from arenarl.training.outcome import GroupOutcome, Referee, Tally, rounded, scored_outcome
from arenarl.training.own_reward import CountedJudge, OwnReward
from arenarl.training.ranked_rewards import by_elo, by_group_stage, by_random_reference, by_tournament, by_win_rate, won
from arenarl.training.rewards import correctness_reward, mixture_reward
from arenarl.training.scored_rewards import ask, by_checklist, by_dimension, by_list, by_overall_score, by_score
from arenarl.trajectory import Query, RolloutGroup

Reward = Callable[[Referee, IncomingGroup], Awaitable[GroupOutcome]]


class Arena(Referee):
    """Where groups meet the judge: the method that `reward.name` names, and what all steps together tell of the judge.

    Rewarding only reads the judge's `variances`, so that no group of a step depends on which of the others was ranked
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
        super().__init__(judge, reward, tournament, group_stage, verifier, seed)
        self.watch = watch
        method = REWARDS.get(reward.name) or _own_reward(reward.name)
        self._reward = partial(partial(_else_tournament, method) if reward.tournament_if_equal else method, self)
        self._tally = Tally()

    def begin(self, queries: Sequence[Query], group_size: int) -> Judging[GroupOutcome]:
        """Judge a step's groups, all at once and from now on, as their trajectories are handed over;
        `watch` is told of each group.

        Outcomes are those of judging the complete groups.
        """
        return self._judge([IncomingGroup(query, group_size) for query in queries])

    def reward_groups(self, groups: Sequence[RolloutGroup]) -> list[GroupOutcome]:
        """Rewards of complete groups."""
        return self._judge([IncomingGroup.of(group) for group in groups]).outcomes()

    def _judge(self, groups: Sequence[IncomingGroup]) -> Judging[GroupOutcome]:
        tally = self._tally

        async def reward(group: IncomingGroup) -> GroupOutcome:
            nonlocal tally
            outcome = await self._reward(group)
            tally += outcome.tally
            self.watch(tally)
            return outcome

        return Judging(groups, reward)

    def count(self, tallies: Sequence[Tally]) -> None:
        """Add a step's groups, those of all processes, to the tally."""
        self._tally = sum(tallies, self._tally)
        self.watch(self._tally)

    def learn(self, group_size: int, calls_by_group: Sequence[Sequence[tuple[int, int, float, float]]]) -> None:
        """Add a step's scored calls, group by group in the order of the batch, to what is known of the judge."""
        for calls in calls_by_group:
            self.variances.observe(group_size, calls)

    def judge_metrics(self) -> dict[str, float]:
        """What the scores of the last few groups tell of the judge, as standard deviations; empty without matches."""
        variances = self.variances
        parts = {"quality": variances.quality, "noise": variances.noise, "shared": variances.shared}
        return {f"judge/sigma_{name}": math.sqrt(value) for name, value in parts.items()} if variances.score_df else {}


async def _by_mixture(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """A score of each trajectory and its matches with the others, together (TournO)."""
    reward = referee.reward
    points, (_, won_G, ranking) = await asyncio.gather(
        by_score(referee, incoming), won(referee, incoming, reward.mixture_pairs)
    )
    rewards_G = mixture_reward(points.rewards_G, won_G, reward.alpha)
    calls, failed = points.judge_calls + ranking.judge_calls, points.failed_calls + ranking.failed_calls
    return GroupOutcome(rewards_G, midranks(rounded(rewards_G)), calls, failed, ranking)


async def _by_correctness(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """1 for the known answer (C.1, InfoAgent); Eq. 8 with `reward.entity_recall`.
    What is invalid has 0, whatever it found."""
    query, weight = incoming.query, referee.reward.entity_recall
    valid_G, replies_G = await ask(incoming, lambda trajectory: [referee.verifier.is_correct(query, trajectory)])
    correct_G = [replies[0] if replies else valid for replies, valid in zip(replies_G, valid_G, strict=True)]
    trajectories = (await incoming.complete()).trajectories
    recall_G = [
        bool(valid) * entity_recall(query, trajectory.messages)
        for valid, trajectory in zip(valid_G, trajectories, strict=True)
    ]
    outcome = scored_outcome(
        correctness_reward(correct_G, recall_G, weight), replies_G if referee.verifier.is_llm else []
    )
    return replace(outcome, correct_G=correct_G)


async def _by_environment(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """What the world gave, 0 where that was nothing; no reward where the world says so by its score,
    and for a void trajectory."""
    trajectories = (await incoming.complete()).trajectories
    return scored_outcome([None if one.is_void else one.meta.get("reward", 0.0) for one in trajectories], [])


async def _else_tournament(reward: Reward, referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """`reward`, unless it is the same for the whole group, of which then the tournament makes a ranking. One that is
    missing for want of a verdict is not known to be the same."""
    outcome = await reward(referee, incoming)
    trajectories = (await incoming.complete()).trajectories
    rewards = {reward for reward, one in zip(rounded(outcome.rewards_G), trajectories, strict=True) if not one.is_void}
    if len(rewards - {None}) > 1 or (None in rewards and outcome.failed_calls):
        return outcome
    ranked = await by_tournament(referee, incoming)
    calls, failed = outcome.judge_calls + ranked.judge_calls, outcome.failed_calls + ranked.failed_calls
    return replace(ranked, correct_G=outcome.correct_G, judge_calls=calls, failed_calls=failed)


async def _by_correctness_or_tournament(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
    """A query with a known answer needs no judge."""
    return await (_by_correctness if has_answer(incoming.query) else by_tournament)(referee, incoming)


def _own_reward(name: str) -> Reward:
    """What package.module:function gives each group; void trajectories it does not get to see,
    and they have no reward."""
    function = OwnReward(name)

    async def reward(referee: Referee, incoming: IncomingGroup) -> GroupOutcome:
        trajectories, judge = (await incoming.complete()).trajectories, CountedJudge(referee.judge, incoming.calling)
        rewards = iter(
            await function(incoming.query, [trajectory for trajectory in trajectories if not trajectory.is_void], judge)
        )
        rewards_G = [None if trajectory.is_void else next(rewards) for trajectory in trajectories]
        return GroupOutcome(rewards_G, midranks(rounded(rewards_G)), judge.calls, judge.failed)

    return reward


REWARDS = {  # reward.name -> how a group is rewarded
    "tournament": by_tournament,
    "pointwise_answer": by_score,
    "pointwise_trajectory": by_score,
    "tournament_grpo": by_group_stage,
    "win_rate": by_win_rate,
    "pointwise_implicit": by_overall_score,
    "pointwise_explicit": by_dimension,
    "environment": _by_environment,
    "correctness": _by_correctness,
    "correctness_or_tournament": _by_correctness_or_tournament,
    "ruler": by_list,
    "brpo": by_random_reference,
    "mixture": _by_mixture,
    "elo": by_elo,
    "rubric_checklist": by_checklist,
}
