"""Rewards of other papers against hand-worked values: RULER, BRPO, TournO's mixture and Elo, and checklists."""

import math
import random
from itertools import combinations, permutations, product

import numpy as np
import pytest
from groups import QUERY, attempt, config_of, truth_of
from parts import arena_of

from arenarl.config.schema import JudgeConfig
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.tournament.dgr import feedback_arcs
from arenarl.tournament.ranking import midranks
from arenarl.training.rewards.brpo import reference_reward
from arenarl.training.rewards.circular import circular_reward, ranking_of, score_of
from arenarl.training.rewards.dgr import dgr_reward
from arenarl.training.rewards.elo import elo_reward
from arenarl.training.rewards.mixture import mixture_reward
from arenarl.training.rewards.rubric_checklist import checklist_reward
from arenarl.trajectory import RolloutGroup

EXACT = JudgeConfig(noise="none")


class Noting(EmbeddedJudge):
    """A judge without errors that records the order of each listwise call; `is_silent` makes the calls fail."""

    def __init__(self, is_silent=False):
        super().__init__(EXACT, truth_of, 0)
        self.orders, self.is_silent = [], is_silent

    async def score_together(self, query, trajectories, repeat=0):
        self.orders.append(tuple(float(trajectory.answer) for trajectory in trajectories))
        return None if self.is_silent else await super().score_together(query, trajectories, repeat)


def rewarded(method, qualities, judge=None, seed=0, **reward):
    """The outcome of trajectories of these qualities; a negative quality makes an invalid trajectory."""
    config = config_of(method)
    config.seed = seed
    for key, value in reward.items():
        setattr(config.reward, key, value)
    group = RolloutGroup(QUERY, [attempt(abs(q), "answer" if q >= 0 else "max_turns") for q in qualities])
    return arena_of(config, judge or EmbeddedJudge(EXACT, truth_of, 0)).reward_groups([group])[0]


def test_ruler_makes_one_call_and_maps_scores_back_from_any_order():
    """truth_of gives quality x the total .8x; identical trajectories are shown once, invalid ones not at all."""
    orders = set()
    for seed in range(8):
        judge = Noting()
        outcome = rewarded("ruler", [5.0, -9.0, 2.0, 5.0, 10.0], judge, seed)
        assert outcome.rewards_G == pytest.approx([0.4, 0.0, 0.16, 0.4, 0.8])
        assert outcome.ranks_G == [1.5, 4.0, 3.0, 1.5, 0.0]
        assert (outcome.judge_calls, outcome.failed_calls, outcome.ranking) == (1, 0, None)
        (order,) = judge.orders
        assert sorted(order) == [2.0, 5.0, 10.0]
        orders.add(order)
    assert len(orders) > 2
    failed = rewarded("ruler", [5.0, -9.0, 2.0], Noting(is_silent=True))
    assert failed.rewards_G == [None] * 3 and (failed.judge_calls, failed.failed_calls) == (1, 1)


def test_brpo_gives_1_or_minus_1_against_a_random_reference_and_0_to_the_reference():
    qualities, references = [4.0, 1.0, -9.0, 8.0, 6.0], set()
    for seed in range(30):
        outcome = rewarded("brpo", qualities, seed=seed)
        (reference,) = [row for row in (0, 1, 3, 4) if outcome.rewards_G[row] == 0]
        expected = [-1.0 if quality < 0 else np.sign(quality - qualities[reference]) for quality in qualities]
        assert outcome.rewards_G == expected and outcome.judge_calls == 2 * 3
        references.add(reference)
    assert references == {0, 1, 3, 4}
    assert reference_reward([None, None, None], [True, True, False]) == [None] * 3  # no verdict
    assert reference_reward([0.0, None, -1.0], [True, True, True]) == [0.0, None, -1.0]
    assert reference_reward([None, None], [False, None]) == [0.0, None]  # no valid trajectory
    assert rewarded("brpo", [7.0, -3.0]).rewards_G == [0.0, -1.0]


def test_mixture_weighs_the_win_rate_less_in_better_groups():
    """Scores .8x / 10: .16, .48, .8 and 0 for the invalid trajectory, mean .36; win rates 0, 1/2, 1 and 0.
    One Elo match gives ratings 16 and -16, so win rates 1 and 0; its mean score is .48."""
    weight = math.exp(-3 * 0.36)
    outcome = rewarded("mixture", [2.0, 6.0, 10.0, -1.0])
    assert outcome.rewards_G == pytest.approx([0.16, 0.48 + weight / 2, 0.8 + weight, 0.0])
    assert outcome.judge_calls == 3 + 2 * 3 and outcome.ranks_G == midranks(outcome.rewards_G) == [2.0, 1.0, 0.0, 3.0]
    assert rewarded("mixture", [2.0, 6.0, 10.0], alpha=0.0).rewards_G == pytest.approx([0.16, 0.98, 1.8])
    assert mixture_reward([0.5, None, 0.7], [1.0, 0.5, None], 1.0) == pytest.approx([0.5 + math.exp(-0.6), None, None])
    assert mixture_reward([None, None], [1.0, 0.0], 1.0) == [None, None]
    elo = rewarded("mixture", [2.0, 10.0], mixture_pairs="elo")
    assert elo.rewards_G == pytest.approx([0.16, 0.8 + math.exp(-3 * 0.48)], abs=1e-6) and elo.judge_calls == 2 + 2


def test_elo_scales_ratings_and_puts_invalid_trajectories_one_match_below_the_lowest():
    assert rewarded("elo", [2.0, 10.0]).rewards_G == pytest.approx([0.0, 1.0], abs=1e-6)
    # ratings 16, -16 and -48
    assert rewarded("elo", [2.0, 10.0, -1.0]).rewards_G == pytest.approx([32 / 64, 1.0, 0.0], abs=1e-6)
    assert rewarded("elo", [2.0, -1.0]).rewards_G == pytest.approx([1.0, 0.0], abs=1e-6)
    assert elo_reward([None, None, None], [True, True, False]) == [None] * 3
    assert elo_reward([None, 5.0, None], [None, True, True])[1:] == [0.0, None]


def test_a_checklist_reward_is_the_weighted_share_of_its_items():
    """The items are quality above 2, 4, 6 and 8, with equal weights."""
    outcome = rewarded("rubric_checklist", [1.0, 5.0, 9.0, -9.0, 5.5])
    assert outcome.rewards_G == [0.0, 0.5, 1.0, 0.0, 0.5] and outcome.judge_calls == 4 and outcome.failed_calls == 0
    weights = {"item_1": 3, "item_2": 2, "item_3": 1}
    met = {"item_1": False, "item_2": True, "item_3": True}
    assert checklist_reward([met, None, dict.fromkeys(weights, True)], weights) == [0.5, None, 1.0]


class Writing(EmbeddedJudge):
    """Proposes these rubrics, each true of the qualities in its list; `seen` records the present ones of each call."""

    def __init__(self, *proposals):
        super().__init__(EXACT, truth_of, 0)
        self.proposals, self.holds, self.seen = list(proposals), {}, []

    async def propose_rubrics(self, query, trajectories, rubrics, repeat=0):
        self.seen.append((rubrics, [float(one.answer) for one in trajectories]))
        proposal = self.proposals.pop(0)
        self.holds |= {text: qualities for text, (_, qualities) in (proposal or {}).items()}
        return proposal and {text: weight for text, (weight, _) in proposal.items()}

    async def check_items(self, query, trajectory, repeat=0, rubrics=()):
        met = await super().check_items(query, trajectory, repeat)
        return met | {text: float(trajectory.answer) in self.holds[text] for text in rubrics}


@pytest.mark.parametrize("scored", ["all", "kept"])
def test_evolving_rubrics_score_their_group_and_five_stay_for_the_next(scored):
    """The checklist is quality above 2, 4, 6 and 8. Of 7 proposals over qualities 1, 3, 5 and 9, `all` and `none` do
    not vary, and `one`, the latest of the four with the smaller spread, is the sixth. The fifth trajectory is invalid,
    the last equals the fourth."""
    first = {
        "all": (1.0, [1, 3, 5, 9]), "slow": (-1.0, [1]), "none": (-1.0, []), "two": (1.0, [5, 9]),
        "half": (1.0, [1, 9]), "three": (1.0, [3, 5, 9]), "fault": (-1.0, [9]), "one": (1.0, [1]),
    }  # fmt: skip
    judge = Writing(first, None, {"two": (-1.0, [5, 9]), "new": (1.0, [9])})
    config = config_of("evolving_rubrics")
    config.reward.scored_rubrics = scored
    arena = arena_of(config, judge)
    group = RolloutGroup(QUERY, [attempt(1.0), attempt(3.0), attempt(5.0), attempt(9.0), attempt(7.0, "max_turns")])
    (outcome,) = arena.reward_groups([group])
    kept = {"two": 1.0, "half": 1.0, "slow": -1.0, "three": 1.0, "fault": -1.0}
    # merits met plus faults avoided: quality 1 has all, none, half, fault, one; 3: all, slow, none, three, fault; …
    points = [0 + 5, 1 + 5, 2 + 6, 4 + 6] if scored == "all" else [0 + 2, 1 + 3, 2 + 4, 4 + 4]
    assert outcome.rewards_G == pytest.approx([*(point / (12 if scored == "all" else 9) for point in points), 0.0])
    assert outcome.rubrics == kept and list(outcome.rubrics)[:2] == ["two", "half"]
    assert (outcome.judge_calls, outcome.failed_calls) == (5, 0) and judge.seen == [([], [1.0, 3.0, 5.0, 9.0])]
    arena.learn(5, [], [(QUERY.query_id, outcome.rubrics), ("other", None)])
    assert arena.referee.rubrics == {QUERY.query_id: kept}
    (silent,) = arena.reward_groups([group])  # no proposals: the present ones go on
    assert silent.rubrics == kept and (silent.judge_calls, silent.failed_calls) == (5, 1)
    (again,) = arena.reward_groups([RolloutGroup(QUERY, [attempt(5.0), attempt(9.0), attempt(9.0)])])
    assert judge.seen[-1] == (list(kept), [5.0, 9.0])  # identical ones are shown once
    assert again.rubrics == {"half": 1.0, "fault": -1.0, "new": 1.0}  # a present rubric keeps its weight


def test_a_proposal_that_repeats_an_item_of_the_checklist_changes_no_weight():
    plain = rewarded("evolving_rubrics", [1.0, 5.0, 9.0], Writing({}))
    for item, weight in product(Writing().checklist(QUERY), (1.0, -1.0)):
        outcome = rewarded("evolving_rubrics", [1.0, 5.0, 9.0], Writing({item: (weight, [1])}))
        assert outcome.rewards_G == plain.rewards_G and outcome.rubrics == {}


def test_without_a_verdict_evolving_rubrics_stay():
    class Silent(Writing):
        async def check_items(self, *arguments, **options):
            return None

    outcome = rewarded("evolving_rubrics", [1.0, 5.0], Silent({"new": (1.0, [5])}))
    assert outcome.rewards_G == [None, None] and outcome.rubrics == {"new": 1.0} and outcome.failed_calls == 2
    assert rewarded("evolving_rubrics", [-1.0, -5.0], Silent()).rubrics == {}


def test_dgr_gives_net_wins_and_ranks_by_them():
    outcome = rewarded("dgr", [4.0, 1.0, -9.0, 8.0, 6.0, 4.0])  # identical trajectories enter once: four entrants
    assert outcome.rewards_G == pytest.approx([-1 / 3, -1.0, -5 / 3, 1.0, 1 / 3, -1 / 3]) and outcome.judge_calls == 12
    assert outcome.ranks_G == [2.5, 4.0, 5.0, 0.0, 1.0, 2.5]
    assert rewarded("dgr", [4.0, -1.0]).rewards_G == [0.0, -2.0] and rewarded("dgr", [-4.0]).rewards_G == [0.0]
    assert rewarded("dgr", [4.0, 4.0, 4.0, 1.0, -9.0]).rewards_G == [1.0, 1.0, 1.0, -1.0, -3.0]
    assert dgr_reward([None, None, None], [True, True, False], 2) == [None] * 3


def test_an_entrant_without_a_verdict_does_not_move_the_places_of_dgr():
    """Four entrants, of which the last has no verdict. The others win 2, 1 and 0 of 3 matches; places are 2/3 apart."""

    class Partial(EmbeddedJudge):
        async def compare(self, query, first, second, repeat=0):
            is_silent = "2.0" in (first.answer, second.answer)
            return None if is_silent else await super().compare(query, first, second, repeat)

    outcome = rewarded("dgr", [8.0, 6.0, 4.0, 2.0, -9.0], Partial(EXACT, truth_of, 0))
    assert outcome.rewards_G == pytest.approx([2 / 3, 0.0, -2 / 3, None, -4 / 3])
    assert outcome.ranks_G == [0.0, 1.0, 2.0, None, 3.0] and (outcome.judge_calls, outcome.failed_calls) == (12, 6)


@pytest.mark.parametrize("size", range(1, 7))
def test_a_minimum_feedback_arc_set_is_as_small_as_the_best_order_allows_and_leaves_no_cycle(size):
    rng = random.Random(size)
    for _ in range(10):
        pairs = [pair for pair in combinations(range(size), 2) if rng.random() < 0.9]
        arcs = {rng.choice([pair, pair[::-1]]) for pair in pairs}
        orders = [{entrant: place for place, entrant in enumerate(order)} for order in permutations(range(size))]
        least = min(sum(place[i] > place[j] for i, j in arcs) for place in orders)
        removed = feedback_arcs(arcs, rng.sample(range(size), size))
        assert removed <= arcs and len(removed) == least
        copies = {(i + size * k, j + size * k) for i, j in arcs for k in range(11)}  # above EXACT: the greedy search
        greedy = feedback_arcs(copies, range(11 * size))
        assert not feedback_arcs(copies - greedy, range(11 * size)) and len(greedy) >= 11 * least


def test_float_noise_moves_neither_score_nor_ranking_of_a_circular_comparison():
    """All totals in steps of .05, each with noise; the exact values come from whole numbers of twentieths."""
    for first, second in product(range(201), repeat=2):
        lead, noisy = abs(first - second), (first / 20 + 1e-12, second / 20 - 1e-12)
        distance = (lead > 0) + (lead > 20) + (lead > 50) - 0.5 if lead else 0.0
        assert ranking_of(*noisy) == 3.5 + (distance if first < second else -distance)
        assert score_of(noisy[0]) == 1 + (first * 2 + 50) // 100 == score_of(first / 20 - 1e-12)


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_circular_rewards_are_mean_scores_against_both_neighbours_and_shorter_answers_gain(penalty):
    """truth_of gives quality x the total .8x; 4 and 4.5 are equal from 1 to 5, and the ranking splits them by 1/2."""
    qualities, totals = [4.0, 4.5, 10.0, -9.0, 1.0], {4.0: 3.2, 4.5: 3.6, 10.0: 8.0, 1.0: 0.8}
    score, places = {4.0: 2, 4.5: 2, 10.0: 4, 1.0: 1}, {4.0: 1 / 4, 4.5: 1 / 4, 10.0: -3 / 4, 1.0: 1 / 4}
    outcome = rewarded("circular", qualities, length_penalty=penalty)
    assert len(outcome.ranking.matches) == 4 and outcome.judge_calls == 8
    expected: dict[float, list[float]] = {quality: [] for quality in totals}
    for match in outcome.ranking.matches:
        pair = [qualities[match.i], qualities[match.j]]
        for one, other in (pair, pair[::-1]):
            is_split = score[one] == score[other]
            expected[one].append(score[one] + is_split * (0.5 if one > other else -0.5))
    rewards = {quality: np.mean(scores) + penalty * places[quality] for quality, scores in expected.items()}
    invalid = min(rewards.values()) - 1
    assert outcome.rewards_G == pytest.approx([rewards.get(quality, invalid) for quality in qualities])
    assert rewarded("circular", [4.0, -1.0]).rewards_G == [3.0, 2.0] and rewarded("circular", [-4.0]).rewards_G == [0.0]
    assert circular_reward([None, None], [True, False], [1, 1]) == [None, None]
