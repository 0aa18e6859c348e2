"""The rivals' rewards, worked out by hand: RULER, BRPO, TournO's mixture and Elo, a checklist of each query;
and Reasoning Arena's switch."""

import math

import pytest
from groups import QUERY, attempt, config_of, truth_of
from parts import arena_of

from arenarl.config.schema import JudgeConfig
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.tournament.ranking import midranks
from arenarl.training.rewards.brpo import reference_reward
from arenarl.training.rewards.elo import elo_reward
from arenarl.training.rewards.mixture import mixture_reward
from arenarl.training.rewards.rubric_checklist import checklist_reward
from arenarl.trajectory import RolloutGroup

EXACT = JudgeConfig(noise="none")


class Noting(EmbeddedJudge):
    """The truth, and what was shown in each listwise call, as the answers' numbers."""

    def __init__(self, verdict=lambda scores: scores):
        super().__init__(EXACT, truth_of, 0)
        self.shown, self.verdict_of = [], verdict

    async def score_together(self, query, trajectories, repeat=0):
        self.shown.append([float(one.answer) for one in trajectories])
        return self.verdict_of(await super().score_together(query, trajectories, repeat))


def rewarded(method, qualities, judge=None, seed=0, **reward):
    """Of trajectories whose answer states their quality; a negative one is invalid."""
    config = config_of(method)
    config.seed = seed
    for key, value in reward.items():
        setattr(config.reward, key, value)
    trajectories = [attempt(abs(q), "answer" if q >= 0 else "max_turns") for q in qualities]
    return arena_of(config, judge or EmbeddedJudge(EXACT, truth_of, 0)).reward_groups(
        [RolloutGroup(QUERY, trajectories)]
    )[0]


def test_ruler_is_one_call_whose_scores_find_their_trajectories_whatever_the_order():
    """truth_of makes of x a total of .8x; identical trajectories are shown once, invalid ones not at all."""
    orders = set()
    for seed in range(8):
        judge = Noting()
        outcome = rewarded("ruler", [5.0, -9.0, 2.0, 5.0, 10.0], judge, seed)
        assert outcome.rewards_G == pytest.approx([0.4, 0.0, 0.16, 0.4, 0.8])
        assert outcome.ranks_G == [1.5, 4.0, 3.0, 1.5, 0.0]
        assert (outcome.judge_calls, outcome.failed_calls, outcome.ranking) == (1, 0, None)
        (shown,) = judge.shown
        assert sorted(shown) == [2.0, 5.0, 10.0]
        orders.add(tuple(shown))
    assert len(orders) > 2


def test_a_listwise_verdict_that_cannot_be_had_is_no_reward_and_counted():
    outcome = rewarded("ruler", [5.0, -9.0, 2.0], Noting(lambda scores: None))
    assert outcome.rewards_G == [None] * 3 and (outcome.judge_calls, outcome.failed_calls) == (1, 1)
    nobody = rewarded("ruler", [-5.0, -9.0], Noting())
    assert nobody.rewards_G == [0.0, 0.0] and (nobody.judge_calls, nobody.failed_calls) == (0, 0)


def test_brpo_gives_1_or_minus_1_against_a_random_member_and_0_to_that():
    qualities, references = [4.0, 1.0, -9.0, 8.0, 6.0], set()
    for seed in range(30):
        outcome = rewarded("brpo", qualities, seed=seed)
        (reference,) = [row for row in (0, 1, 3, 4) if outcome.rewards_G[row] == 0]
        expected = [
            -1.0 if q < 0 else math.copysign(1, q - qualities[reference]) if row != reference else 0.0
            for row, q in enumerate(qualities)
        ]
        assert outcome.rewards_G == expected and outcome.judge_calls == 2 * 3
        references.add(reference)
    assert references == {0, 1, 3, 4}


def test_brpo_without_a_verdict_has_no_reward_and_without_a_valid_member_no_direction():
    assert reference_reward([None, None, None], [True, True, False]) == [None] * 3
    assert reference_reward([0.0, None, -1.0], [True, True, True]) == [0.0, None, -1.0]
    assert reference_reward([None, None], [False, None]) == [0.0, None]
    assert rewarded("brpo", [7.0, -3.0]).rewards_G == [0.0, -1.0]


def test_a_mixture_is_the_score_and_less_of_the_win_rate_the_better_the_group_is():
    """Scores of .8x / 10: .16, .48, .8 and 0 of the invalid one, their mean .36; win rates 0, 1/2, 1 and 0."""
    weight = math.exp(-3 * 0.36)
    outcome = rewarded("mixture", [2.0, 6.0, 10.0, -1.0])
    assert outcome.rewards_G == pytest.approx([0.16, 0.48 + weight / 2, 0.8 + weight, 0.0])
    assert outcome.judge_calls == 3 + 2 * 3 and outcome.ranks_G == midranks(outcome.rewards_G) == [2.0, 1.0, 0.0, 3.0]
    assert rewarded("mixture", [2.0, 6.0, 10.0], alpha=0.0).rewards_G == pytest.approx([0.16, 0.98, 1.8])
    assert mixture_reward([0.5, None, 0.7], [1.0, 0.5, None], 1.0) == pytest.approx([0.5 + math.exp(-0.6), None, None])
    assert mixture_reward([None, None], [1.0, 0.0], 1.0) == [None, None]


def test_a_mixture_can_take_its_pairs_from_elo():
    """Two of them meet once: 16 and -16, so 1 and 0; the mean score is .48."""
    outcome = rewarded("mixture", [2.0, 10.0], mixture_pairs="elo")
    assert (
        outcome.rewards_G == pytest.approx([0.16, 0.8 + math.exp(-3 * 0.48)], abs=1e-6) and outcome.judge_calls == 2 + 2
    )


def test_elo_runs_from_the_lowest_rating_to_the_highest_and_an_invalid_one_is_a_match_below():
    assert rewarded("elo", [2.0, 10.0]).rewards_G == pytest.approx([0.0, 1.0], abs=1e-6)
    # 16, -16 and -48
    assert rewarded("elo", [2.0, 10.0, -1.0]).rewards_G == pytest.approx([32 / 64, 1.0, 0.0], abs=1e-6)
    assert rewarded("elo", [2.0, -1.0]).rewards_G == pytest.approx([1.0, 0.0], abs=1e-6)
    assert elo_reward([None, None, None], [True, True, False]) == [None] * 3
    assert elo_reward([None, 5.0, None], [None, True, True])[1:] == [0.0, None]


def test_elos_keys_reach_the_tournament():
    config = config_of("elo", elo_matches=3, elo_estimate="bradley_terry")
    group = RolloutGroup(QUERY, [attempt(float(quality)) for quality in range(8)])
    outcome = arena_of(config, EmbeddedJudge(EXACT, truth_of, 0)).reward_groups([group])[0]
    assert outcome.judge_calls == 6 and len(outcome.ranking.matches) == 3


def test_a_checklist_is_the_weighted_share_of_its_items():
    """Above 2, 4, 6 and 8, of equal weight."""
    outcome = rewarded("rubric_checklist", [1.0, 5.0, 9.0, -9.0, 5.5])
    assert outcome.rewards_G == [0.0, 0.5, 1.0, 0.0, 0.5] and outcome.judge_calls == 4 and outcome.failed_calls == 0
    weights = {"item_1": 3, "item_2": 2, "item_3": 1}
    met = {"item_1": False, "item_2": True, "item_3": True}
    assert checklist_reward([met, None, dict.fromkeys(weights, True)], weights) == [0.5, None, 1.0]


def test_reasoning_arenas_switch_plays_the_tournament_only_where_all_outcomes_are_equal():
    """Outcomes 1, 0, 1, 0 decide; three equal ones play, and ranks 1, 2, 0 are rewards 1/2, 0, 1."""
    config = config_of("environment")
    config.reward.tournament_if_equal = True
    arena = arena_of(config, EmbeddedJudge(EXACT, truth_of, 0))

    def outcome_of(qualities, outcomes):
        trajectories = [attempt(quality) for quality in qualities]
        for trajectory, outcome in zip(trajectories, outcomes, strict=True):
            trajectory.meta["reward"] = outcome
        return arena.reward_groups([RolloutGroup(QUERY, trajectories)])[0]

    mixed = outcome_of([3.0, 9.0, 1.0, 5.0], [1.0, 0.0, 1.0, 0.0])
    assert mixed.rewards_G == [1.0, 0.0, 1.0, 0.0] and mixed.judge_calls == 0
    for outcome in (0.0, 1.0):
        equal = outcome_of([3.0, 1.0, 9.0], [outcome] * 3)
        assert equal.rewards_G == [0.5, 0.0, 1.0] and equal.judge_calls > 0
