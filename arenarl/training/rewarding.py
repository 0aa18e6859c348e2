"""Rollout groups → rewards: the judge meets the topology here.

For ArenaRL a group plays its tournament and the ranks become rewards (Eqs. 3-6); the paper's baselines ask the judge for a
pointwise score instead (Section 6.1). Tournament-GRPO and the baselines of its Appendix F are further rows of `REWARDS`, and so are rivals
(docs/methods.md) and the correctness of an answer that is known (InfoAgent); a function of one's own is none of them. All groups of a step run
at once, each from its first trajectory on. A trajectory without a verdict gets no reward; nor does one that a tool's crash made void, and the
others are ranked without it.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from statistics import fmean

from arenarl.config.schema import GroupStageConfig, RewardConfig, TournamentConfig
from arenarl.domains.known_answers import entity_recall, has_answer
from arenarl.domains.rubrics import weighted_mean
from arenarl.judges.judge import Judge, scores_and_detail
from arenarl.judges.verifier import Verifier
from arenarl.system.seeds import stable_seed
from arenarl.tournament.mixed_model import JudgeVariances
from arenarl.tournament.play import play_tournament
from arenarl.tournament.ranking import Ranking, midranks, scored_calls
from arenarl.tournament.topologies import parameters_of, surely_meets
from arenarl.training.judging import EarlyCalls, IncomingGroup, Judging
from arenarl.training.own_reward import CountedJudge, OwnReward
from arenarl.training.rewards import (
    add_format_reward,
    checklist_reward,
    correctness_reward,
    elo_reward,
    min_max,
    mixture_reward,
    pointwise_reward,
    rank_to_reward,
    reference_reward,
    zero_invalid,
)
from arenarl.trajectory import Query, RolloutGroup, Trajectory

Reward = Callable[["Arena", IncomingGroup], Awaitable["GroupOutcome"]]


@dataclass(frozen=True)
class Tally:
    """How much has been judged: the line that is shown during RL."""

    groups: int = 0
    matches: int = 0
    ties: int = 0
    failed_calls: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return f"{self.groups} groups, {self.matches} matches, {self.ties} ties, {self.failed_calls} failed calls"


@dataclass
class GroupOutcome:
    """What judging gave one group: `rewards_G` and `ranks_G` are (G,), None where there was no verdict; `correct_G` too, where the answer
    is known, else it is empty. `scores_G`, of a reward that is pointwise, are the scores from 0 to 10 that it was made of."""

    rewards_G: list[float | None]
    ranks_G: list[float | None]
    judge_calls: int
    failed_calls: int
    ranking: Ranking | None = field(default=None, repr=False)
    correct_G: list[bool | None] = field(default_factory=list)
    scores_G: list[float | None] = field(default_factory=list)

    @property
    def judged_G(self) -> list[float | None]:
        """(G,) from 0 to 10: the mean of what the judge gave each trajectory, alone or beside others; None where it scored none."""
        if self.scores_G:
            return self.scores_G
        given_G: list[list[float]] = [[] for _ in self.rewards_G]
        for first, second, score_first, score_second in self.scored_calls:
            given_G[first].append(score_first)
            given_G[second].append(score_second)
        return [fmean(given) if given else None for given in given_G]

    @property
    def scored_calls(self) -> list[tuple[int, int, float, float]]:
        """(first, second, score_first, score_second) of the calls that compared two; none where scores are pointwise."""
        return scored_calls(self.ranking.matches) if self.ranking else []

    @property
    def tally(self) -> Tally:
        matches = self.ranking.matches if self.ranking else []
        return Tally(1, len(matches), sum(match.is_tie for match in matches), self.failed_calls)


class Arena:
    """Where groups meet the judge: the method that `reward.name` names, and what all steps together tell of the judge.

    A ranking by scores weighs them by the judge's `variances`. Rewarding only reads these, so that no group of a step depends on
    which of the others was ranked before it; `learn` comes after.
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
        self.judge = judge
        self.reward, self.tournament, self.group_stage = reward, tournament, group_stage
        self.verifier = verifier
        self.seed = seed
        self.watch = watch
        self.variances = JudgeVariances()
        method = REWARDS.get(reward.name) or _own_reward(reward.name)
        self._reward = partial(partial(_else_tournament, method) if reward.tournament_if_equal else method, self)
        self._tally = Tally()

    def begin(self, queries: Sequence[Query], group_size: int) -> Judging[GroupOutcome]:
        """Judge a step's groups, all at once and from now on, as their trajectories are handed over; `watch` is told of each group.

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


async def _tournament_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """Eqs. 3-6, ArenaRL."""
    tournament = arena.tournament
    options = {name: getattr(tournament, name) for name in ("ranking", *parameters_of(tournament.topology))}
    _, ranking = await _play(arena, incoming, tournament.topology, {**options, "variances": arena.variances})
    return _outcome(rank_to_reward(ranking.ranks_G), ranking)


async def _tournament_grpo_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """Algorithm 1, Eqs. 8 and 9, Tournament-GRPO."""
    valid_G, ranking = await _play(arena, incoming, "group_stage", asdict(arena.group_stage))
    return _outcome(add_format_reward(min_max(zero_invalid(ranking.scores_G, valid_G)), valid_G), ranking)


async def _win_rate_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """Share of matches won against all others, and Eq. 15, Tournament-GRPO. Both orders are asked (Eq. 3, ArenaRL)."""
    valid_G, won_G, ranking = await _won(arena, incoming, "win_rate")
    return _outcome(add_format_reward(won_G, valid_G), ranking)


async def _won(arena: Arena, incoming: IncomingGroup, pairs: str) -> tuple[list[bool | None], list[float | None], Ranking]:
    """(valid_G, what matches gave each in [0, 1], the matches): the share of all others beaten (`win_rate`), or Elo ratings (`elo`)."""
    if pairs == "win_rate":
        valid_G, ranking = await _play(arena, incoming, "round_robin", {})
        won_G = ranking.scores_G if ranking.matches else [0.0] * len(valid_G)  # nobody to beat is no missing verdict
        return valid_G, zero_invalid(won_G, valid_G), ranking
    valid_G, ranking = await _play(arena, incoming, "elo", {name: getattr(arena.tournament, name) for name in parameters_of("elo")})
    ratings_G = ranking.scores_G if ranking.matches else [0.0 if valid else None for valid in valid_G]
    return valid_G, elo_reward(ratings_G, valid_G), ranking


async def _play(arena: Arena, incoming: IncomingGroup, topology: str, options: dict) -> tuple[list[bool | None], Ranking]:
    """(valid_G, the group's tournament). Trajectories with the same messages enter once; void ones have no rank.

    Calls that are sure to be made start as soon as their trajectories are there, all others with the complete group.
    """
    query, tournament = incoming.query, arena.tournament

    async def ask(i: int, j: int) -> tuple | None:
        first, second = await incoming.trajectory(i), await incoming.trajectory(j)
        with incoming.calling():
            return scores_and_detail(await arena.judge.compare(query, first, second))

    async def choose(indices: tuple[int, ...], winners: int) -> list[int] | None:
        trajectories = [await incoming.trajectory(row) for row in indices]
        with incoming.calling():
            positions = await arena.judge.choose(query, trajectories, winners)
        shown = dict(enumerate(indices))  # unlike a sequence it refuses a position of -1
        return None if positions is None else [shown[position] for position in positions]

    async def enter(row: int) -> Trajectory:
        trajectory = await incoming.trajectory(row)
        calls.enter(row, repr(trajectory.messages) if trajectory.valid else None)
        return trajectory

    calls = EarlyCalls(surely_meets(topology), ask, tournament.bidirectional, tournament.timeout_s)
    valid_G = _valid(await asyncio.gather(*map(enter, range(len(incoming)))))
    entrants_G = [calls.entered[row] for row in range(len(incoming))]
    ranking = await play_tournament(
        topology,
        len(incoming),
        choose if topology == "group_stage" else calls.compare,
        seed=stable_seed(arena.seed, query.query_id),
        entrants=entrants_G,
        valid_G=valid_G,
        timeout_s=tournament.timeout_s,
        bidirectional=tournament.bidirectional,
        **options,
    )
    if None in valid_G:
        places = [None if valid is None or rank is None else -rank for valid, rank in zip(valid_G, ranking.ranks_G, strict=True)]
        ranking = replace(ranking, ranks_G=midranks(places))
    return valid_G, ranking


def _valid(trajectories: Sequence[Trajectory]) -> list[bool | None]:
    """valid_G; None for a void one."""
    return [None if trajectory.is_void else trajectory.valid for trajectory in trajectories]


def _outcome(rewards_G: list[float | None], ranking: Ranking) -> GroupOutcome:
    return GroupOutcome(rewards_G, ranking.ranks_G, ranking.judge_calls, ranking.failed_calls, ranking)


async def _pointwise_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """A score of the answer alone (3.2), as in the paper's GRPO and GSPO rows, or of the whole trajectory; the mean of several calls."""
    reward = arena.reward

    async def score(trajectory: Trajectory, repeat: int) -> float | None:
        verdict = await arena.judge.score(incoming.query, trajectory, reward.name == "pointwise_answer", repeat)
        return None if verdict is None else verdict.totals[0]

    valid_G, replies_G = await _ask(incoming, lambda trajectory: [score(trajectory, repeat) for repeat in range(reward.repeats)])
    known_G = [[reply for reply in replies if reply is not None] for replies in replies_G]
    scores_G = [fmean(known) if known else None for known in known_G]
    return _pointwise_outcome(pointwise_reward(scores_G, valid_G), replies_G, scores_G)


async def _implicit_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """One number for the whole rubric. Eqs. 11 and 12, Tournament-GRPO."""
    valid_G, replies_G = await _ask(incoming, lambda trajectory: [arena.judge.score_overall(incoming.query, trajectory)])
    scores_G = [replies[0] if replies else None for replies in replies_G]
    return _pointwise_outcome(add_format_reward(pointwise_reward(zero_invalid(scores_G, valid_G)), valid_G), replies_G, scores_G)


async def _explicit_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """A call for every dimension; a trajectory that misses one has no score. Eqs. 13 and 14, Tournament-GRPO."""
    query, weights = incoming.query, arena.judge.weights(incoming.query)
    valid_G, replies_G = await _ask(incoming, lambda trajectory: [arena.judge.score_dimension(query, trajectory, name) for name in weights])
    scores_G = [weighted_mean(dict(zip(weights, replies, strict=True)), weights) if replies else None for replies in replies_G]
    return _pointwise_outcome(add_format_reward(pointwise_reward(zero_invalid(scores_G, valid_G)), valid_G, scale=0.5), replies_G, scores_G)


async def _ask(
    incoming: IncomingGroup, calls: Callable[[Trajectory], list[Awaitable[float | None]]]
) -> tuple[list[bool | None], list[list[float | None]]]:
    """(valid_G, the judge's replies to each trajectory's `calls`), asked as soon as it is there; of an invalid one, nothing is."""

    async def reply(call: Awaitable[float | None]) -> float | None:
        with incoming.calling():
            return await call

    async def replies(row: int) -> list[float | None]:
        trajectory = await incoming.trajectory(row)
        return await asyncio.gather(*map(reply, calls(trajectory))) if trajectory.valid else []

    replies_G = await asyncio.gather(*map(replies, range(len(incoming))))
    return _valid((await incoming.complete()).trajectories), replies_G


async def _checklist_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """One call a trajectory about all items of the query's checklist. Rubrics as Rewards, its explicit aggregation."""
    query, weights = incoming.query, arena.judge.checklist(incoming.query)
    valid_G, replies_G = await _ask(incoming, lambda trajectory: [arena.judge.check_items(query, trajectory)])
    shares_G = checklist_reward([replies[0] if replies else None for replies in replies_G], weights)
    return _pointwise_outcome(zero_invalid(shares_G, valid_G), replies_G)


async def _ruler_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """One listwise call about the group, its order drawn by lot; trajectories with the same messages are shown once (RULER)."""
    query, trajectories = incoming.query, (await incoming.complete()).trajectories
    rows = {repr(one.messages): row for row, one in reversed(list(enumerate(trajectories))) if one.valid}
    shown = random.Random(stable_seed(arena.seed, query.query_id)).sample(sorted(rows.values()), len(rows))
    scores: list[float] | None = None
    if shown:
        with incoming.calling():
            scores = await arena.judge.score_together(query, [trajectories[row] for row in shown])
    by_row = dict(zip(shown, scores or [None] * len(shown), strict=True))
    valid_G = _valid(trajectories)
    scores_G = [by_row[rows[repr(one.messages)]] if one.valid else None for one in trajectories]
    rewards_G = pointwise_reward(zero_invalid(scores_G, valid_G))
    return GroupOutcome(rewards_G, midranks(rewards_G), int(bool(shown)), int(bool(shown) and scores is None), scores_G=scores_G)


async def _brpo_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """Everybody against a random valid member of the group (BRPO, Writing-Zero)."""
    valid_G, ranking = await _play(arena, incoming, "random_reference", {})
    signs_G = ranking.scores_G if ranking.matches else [0.0] * len(valid_G)
    return _outcome(reference_reward(signs_G, valid_G), ranking)


async def _elo_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """Ratings from 0 for the lowest to 1 (TournO's batched Elo)."""
    _, rewards_G, ranking = await _won(arena, incoming, "elo")
    return _outcome(rewards_G, ranking)


async def _mixture_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """A score of each trajectory and its matches with the others, together (TournO)."""
    reward = arena.reward
    points, (_, won_G, ranking) = await asyncio.gather(_pointwise_reward(arena, incoming), _won(arena, incoming, reward.mixture_pairs))
    rewards_G = mixture_reward(points.rewards_G, won_G, reward.alpha)
    calls, failed = points.judge_calls + ranking.judge_calls, points.failed_calls + ranking.failed_calls
    return GroupOutcome(rewards_G, midranks(rewards_G), calls, failed, ranking)


async def _correctness_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """1 for the known answer (C.1, InfoAgent); Eq. 8 with `reward.entity_recall`. What is invalid has 0, whatever it found."""
    query, weight = incoming.query, arena.reward.entity_recall
    valid_G, replies_G = await _ask(incoming, lambda trajectory: [arena.verifier.is_correct(query, trajectory)])
    correct_G = [replies[0] if replies else valid for replies, valid in zip(replies_G, valid_G, strict=True)]
    trajectories = (await incoming.complete()).trajectories
    recall_G = [bool(valid) * entity_recall(query, trajectory.messages) for valid, trajectory in zip(valid_G, trajectories, strict=True)]
    outcome = _pointwise_outcome(correctness_reward(correct_G, recall_G, weight), replies_G if arena.verifier.is_llm else [])
    return replace(outcome, correct_G=correct_G)


async def _environment_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """What the world gave, 0 where that was nothing; a void trajectory has no reward."""
    trajectories = (await incoming.complete()).trajectories
    return _pointwise_outcome([None if one.is_void else one.meta.get("reward", 0.0) for one in trajectories], [])


async def _else_tournament(reward: Reward, arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """`reward`, unless it is the same for the whole group, of which then the tournament makes a ranking."""
    outcome = await reward(arena, incoming)
    if len({reward for reward in outcome.rewards_G if reward is not None}) > 1:
        return outcome
    ranked = await _tournament_reward(arena, incoming)
    return replace(ranked, correct_G=outcome.correct_G)


async def _correctness_or_tournament_reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
    """A query with a known answer needs no judge."""
    return await (_correctness_reward if has_answer(incoming.query) else _tournament_reward)(arena, incoming)


def _own_reward(name: str) -> Reward:
    """What package.module:function gives each group; void trajectories it does not get to see, and they have no reward."""
    function = OwnReward(name)

    async def reward(arena: Arena, incoming: IncomingGroup) -> GroupOutcome:
        trajectories, judge = (await incoming.complete()).trajectories, CountedJudge(arena.judge, incoming.calling)
        rewards = iter(await function(incoming.query, [trajectory for trajectory in trajectories if not trajectory.is_void], judge))
        rewards_G = [None if trajectory.is_void else next(rewards) for trajectory in trajectories]
        return GroupOutcome(rewards_G, midranks(rewards_G), judge.calls, judge.failed)

    return reward


def _pointwise_outcome(
    rewards_G: list[float | None], replies_G: list[list[float | None]], scores_G: Sequence[float | None] = ()
) -> GroupOutcome:
    failed_calls = sum(reply is None for replies in replies_G for reply in replies)
    return GroupOutcome(rewards_G, midranks(rewards_G), sum(map(len, replies_G)), failed_calls, scores_G=list(scores_G))


REWARDS = {  # reward.name -> how a group is rewarded
    "tournament": _tournament_reward,
    "pointwise_answer": _pointwise_reward,
    "pointwise_trajectory": _pointwise_reward,
    "tournament_grpo": _tournament_grpo_reward,
    "win_rate": _win_rate_reward,
    "pointwise_implicit": _implicit_reward,
    "pointwise_explicit": _explicit_reward,
    "environment": _environment_reward,
    "correctness": _correctness_reward,
    "correctness_or_tournament": _correctness_or_tournament_reward,
    "ruler": _ruler_reward,
    "brpo": _brpo_reward,
    "mixture": _mixture_reward,
    "elo": _elo_reward,
    "rubric_checklist": _checklist_reward,
}
