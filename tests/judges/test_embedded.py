import asyncio
import dataclasses

import numpy as np
import pytest
from groups import QUERY, attempt
from parts import domain_of

from arenarl.config.schema import Config, JudgeConfig
from arenarl.domains.rubrics import weighted_mean
from arenarl.domains.travel.truth import ANSWER_DIMENSIONS, PATH_DIMENSIONS, TravelTruth, examine
from arenarl.judges.embedded import PROPOSED, SPREAD, EmbeddedJudge
from arenarl.judges.factory import refuse_without_checklist
from arenarl.judges.judge import cached_examiner, make_examiner
from arenarl.judges.view import view_of
from arenarl.system.errors import UserError

ALL = PATH_DIMENSIONS + ANSWER_DIMENSIONS
HALF = TravelTruth([0.5], [0.5], [0.5], [0.5], {"a": True, "b": False}, clarity=0.5)
HALF = dataclasses.replace(HALF, facts_expected=2, facts_grounded=1)
QUIET = JudgeConfig(
    sigma_independent=0.0, sigma_call=0.0, sigma_sticky=0.0, position_bias=0.0, length_bias=0.0, rounding=1e-6
)
A, B = attempt("one"), attempt("two")
PAIRS = [(attempt(f"a{number:03d}"), attempt(f"b{number:03d}")) for number in range(500)]


def judge(seed=0, truth=HALF, **noise):
    """Return a judge with only the given noise. By default the truth is 5 of 10 in each dimension."""
    return EmbeddedJudge(dataclasses.replace(QUIET, **noise), lambda query, trajectory: truth, seed)


def call(judge, method, *arguments, query=QUERY, **options):
    return asyncio.run(getattr(judge, method)(query, *arguments, **options))


def total(judge, trajectory, **options):
    return call(judge, "score", trajectory, **options).totals[0]


def totals(judge, first, second):
    return call(judge, "compare", first, second).totals


def test_without_noise_the_verdict_is_the_truth(world, taught):
    domain = domain_of(Config())
    judge = EmbeddedJudge(JudgeConfig(noise="none"), make_examiner(domain), 0)
    for one, other in zip(taught[::10], taught[1::10], strict=True):
        query, both = one.query, (one.trajectory, other.trajectory)
        expected = [examine(world, query, trajectory.messages).dimensions() for trajectory in both]
        assert call(judge, "compare", *both, query=query).dimensions == tuple(expected)
        assert call(judge, "score", both[0], query=query).dimensions == (expected[0],)
        truth = domain.examine_view(query, view_of(both[0], "answer").messages).dimensions()
        (scores,) = call(judge, "score", both[0], answer_only=True, query=query).dimensions
        assert scores == {name: truth[name] for name in ANSWER_DIMENSIONS}


def test_the_cached_examiner_examines_each_trajectory_once():
    calls = []

    def count(query, messages):
        calls.append(messages)
        return HALF

    examiner = cached_examiner(count)
    assert [examiner(QUERY, trajectory) for trajectory in (A, B, A, attempt("one"))] == [HALF] * 4
    assert calls == [A.messages, B.messages]


def test_equal_calls_have_equal_noise_and_different_calls_have_different_noise():
    noisy, again = judge(sigma_independent=1.0), judge(sigma_independent=1.0)
    first = call(noisy, "compare", A, B)
    assert first == call(noisy, "compare", A, B) == call(again, "compare", attempt("one"), attempt("two"))
    others = [
        call(noisy, "compare", A, B, repeat=1).dimensions[0],
        call(noisy, "compare", B, A).dimensions[1],
        call(judge(seed=1, sigma_independent=1.0), "compare", A, B).dimensions[0],
        call(noisy, "compare", A, B, query=dataclasses.replace(QUERY, query_id="other")).dimensions[0],
        call(noisy, "compare", A, attempt("three")).dimensions[0],
        call(noisy, "score", A).dimensions[0],
        call(noisy, "score", A, repeat=1).dimensions[0],
    ]
    assert first.dimensions[0] not in others and others[-2] != others[-1]
    assert call(noisy, "score", A) == call(noisy, "score", A)
    group = [attempt(text) for text in "abcdefgh"]
    chosen = [call(noisy, "choose", group, 2, repeat) for repeat in range(20)]
    assert chosen == [call(again, "choose", group, 2, repeat) for repeat in range(20)]
    assert len({tuple(positions) for positions in chosen}) > 5


@pytest.mark.parametrize(("noise", "sigma"), [("sigma_independent", 1.5), ("sigma_call", 1.5), ("sigma_sticky", 0.7)])
def test_each_noise_has_its_standard_deviation_and_no_bias(noise, sigma):
    noisy = judge(**{noise: sigma})
    scores = np.array([call(noisy, "score", first).dimensions[0]["path_breadth"] for first, _ in PAIRS])
    assert scores.mean() == pytest.approx(5.0, abs=4 * sigma / 500**0.5)
    assert scores.std() == pytest.approx(sigma, rel=0.15)


def test_drift_cancels_in_pairwise_differences_and_counts_twice_in_pointwise_differences():
    noisy = judge(sigma_call=1.0, sigma_independent=0.3)
    pairwise = [np.subtract(*totals(noisy, *pair)) for pair in PAIRS[:300]]
    pointwise = [total(noisy, first) - total(noisy, second) for first, second in PAIRS[:300]]
    # independent noise of a total: weights .6/3 on three, .4/4 on four dimensions
    independent = 0.3**2 * (3 * 0.2**2 + 4 * 0.1**2)
    assert np.var(pairwise) == pytest.approx(2 * independent, rel=0.3)
    assert np.var(pointwise) == pytest.approx(2 * independent + 2 * 1.0**2, rel=0.3)


def test_taste_is_constant_per_trajectory_and_position_bias_cancels_over_both_orders():
    noisy = judge(sigma_sticky=1.0)
    alone = total(noisy, A)
    assert [total(noisy, A, repeat=repeat) for repeat in range(5)] == [alone] * 5
    assert totals(noisy, A, B)[0] == totals(noisy, B, A)[1] == alone
    assert alone != 5.0 and total(noisy, B) != alone
    biased = judge(position_bias=0.3)
    assert totals(biased, A, B) == pytest.approx((5.3, 4.7)) == totals(biased, B, A)
    assert total(biased, A) == pytest.approx(5.0)


@pytest.mark.parametrize("typical", [90, 600])
def test_length_bias_grows_with_the_log_of_the_length(typical):
    biased = judge(length_bias=0.4, typical_chars=typical)
    assert total(biased, attempt("x" * typical)) == pytest.approx(5.0)
    assert total(biased, attempt("x" * round(typical * np.e))) == pytest.approx(5.4, abs=0.01)
    assert total(biased, attempt("x")) < 5.0


def test_scores_are_rounded_and_stay_within_0_and_10():
    wild = judge(sigma_independent=8.0, rounding=0.5)
    verdicts = [scores for pair in PAIRS[:30] for scores in call(wild, "compare", *pair).dimensions]
    scores = [value for dimensions in verdicts for value in dimensions.values()]
    assert min(scores) == 0.0 and max(scores) == 10.0
    assert all(value % 0.5 == 0 for value in scores)


def test_an_answer_only_verdict_has_only_the_dimensions_of_the_answer():
    noisy = judge(sigma_independent=1.0)
    assert tuple(call(noisy, "score", A, answer_only=True).dimensions[0]) == ANSWER_DIMENSIONS
    verdicts = call(noisy, "score", A), call(noisy, "compare", A, B)
    assert all(tuple(dimensions) == ALL for verdict in verdicts for dimensions in verdict.dimensions)
    pathless = judge(truth=dataclasses.replace(HALF, needs=[0.0], usefulness=[0.0], evidence=[0.0]))
    assert total(pathless, A, answer_only=True) == total(judge(), A, answer_only=True) == 5.0
    assert total(pathless, A) == pytest.approx(2.0)


def test_choose_returns_the_best_positions_and_of_equal_ones_the_first_shown():
    def examine(query, view):
        quality = float(view.answer) / 10
        return TravelTruth(*[[quality]] * 4, {}, clarity=quality)

    group, quiet, drifting = [attempt(text) for text in "38581"], judge(), judge(sigma_call=0.5)
    assert call(quiet, "choose", group, 2) == [0, 1]
    quiet.examine = drifting.examine = examine
    assert call(drifting, "choose", group, 1) == [1] and sorted(call(quiet, "choose", group, 3)) == [1, 2, 3]


def test_an_overall_score_has_the_noise_of_one_score_and_explicit_scores_average_it_out():
    exact = judge(truth=dataclasses.replace(HALF, needs=[1.0]), noise="none")
    assert call(exact, "score_overall", A) == pytest.approx(0.6 * 20 / 3 + 0.4 * 5)
    assert [call(exact, "score_dimension", A, name) for name in ALL] == [10.0] + [5.0] * 6
    noisy = judge(sigma_independent=1.0, sigma_call=1.0)
    overall, explicit = [], []
    for first, _ in PAIRS[:400]:
        overall.append(call(noisy, "score_overall", first))
        scores = {name: call(noisy, "score_dimension", first, name) for name in ALL}
        explicit.append(weighted_mean(scores, noisy.weights(QUERY)))
    assert np.mean(overall) == pytest.approx(5.0, abs=0.3) and np.mean(explicit) == pytest.approx(5.0, abs=0.2)
    # weights .2 on three dimensions, .1 on four; drift and noise of all calls are independent
    assert np.var(overall) == pytest.approx(2.0, rel=0.3)
    assert np.var(explicit) == pytest.approx(2 * (3 * 0.2**2 + 4 * 0.1**2), rel=0.3)


def test_a_listwise_call_has_one_drift_and_a_lead_that_falls_evenly_by_position():
    group = [attempt(f"t{number}") for number in range(6)]

    def together(repeats=1, **noise):
        one = judge(**noise)
        return np.array([call(one, "score_together", group, repeat) for repeat in range(repeats)])

    assert together(position_bias=0.5)[0] == pytest.approx(5 + 0.5 * np.linspace(1, -1, 6), abs=1e-5)
    assert together(position_bias=0.5, listwise_noise=2.0)[0] == pytest.approx(5 + np.linspace(1, -1, 6), abs=1e-5)
    drifts = together(400, sigma_call=1.0)
    assert np.ptp(drifts, axis=1).max() < 1e-9 and drifts[:, 0].std() == pytest.approx(1.0, rel=0.1)
    for times in (1.0, 1.5, 2.0):
        noise = together(200, sigma_independent=0.5, listwise_noise=times)
        assert noise.std() == pytest.approx(0.5 * times, rel=0.1)
        assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.2
    assert together(sigma_independent=0.5, listwise_noise=0.0) == pytest.approx(5.0)


def test_checklist_items_are_the_constraints_and_answers_flip_with_the_flip_rate():
    exact = judge(noise="none", flip_rate=0.4)
    assert exact.checklist(QUERY) == {"a": 1.0, "b": 1.0}
    assert call(exact, "check_items", A) == {"a": True, "b": False}
    for rate in (0.0, 0.2, 0.5):
        answers = [call(judge(flip_rate=rate), "check_items", A, repeat) for repeat in range(1000)]
        assert all(answers[0] == call(judge(flip_rate=rate), "check_items", A) for _ in range(2))
        for name, is_met in HALF.constraints.items():
            assert np.mean([one[name] != is_met for one in answers]) == pytest.approx(rate, abs=0.05)
    unconstrained = judge(truth=TravelTruth())
    with pytest.raises(UserError, match="query q has no constraints for a checklist"):
        refuse_without_checklist("rubric_checklist", unconstrained, [QUERY])
    refuse_without_checklist("ruler", unconstrained, [QUERY])
    refuse_without_checklist("rubric_checklist", judge(), [QUERY])


@pytest.mark.parametrize("noise", [{}, {"sigma_independent": 2.0, "sigma_call": 2.0}])
def test_the_default_flip_rate_makes_answers_as_reliable_as_scores(noise):
    """Compare the correlations of two calls: of scores with the spread of a group, and of answers that are half yes."""
    config = JudgeConfig(position_bias=0.0, length_bias=0.0, rounding=1e-6, **noise)
    truths = {}
    for number, score in enumerate(np.random.default_rng(0).normal(5.0, SPREAD, 4000)):
        share = np.clip(score, 0, 10) / 10
        truths[f"t{number}"] = TravelTruth(*[[share]] * 4, {"a": number % 2 == 0}, clarity=share)
    one = EmbeddedJudge(config, lambda query, trajectory: truths.get(trajectory.answer, HALF), 0)
    rate = one.flip_rate(QUERY)
    answers = [[call(one, "check_items", attempt(name), repeat)["a"] for repeat in (0, 1)] for name in truths]
    assert np.corrcoef(np.array(answers, dtype=float).T)[0, 1] == pytest.approx((1 - 2 * rate) ** 2, abs=0.05)
    weights = np.array(list(one.weights(QUERY).values()))
    noise_of_a_total = (weights**2).sum() * config.sigma_independent**2 + config.sigma_call**2 + config.sigma_sticky**2
    assert (1 - 2 * rate) ** 2 == pytest.approx(SPREAD**2 / (SPREAD**2 + noise_of_a_total))


def test_new_rubrics_separate_the_group_or_at_the_stated_rate_say_nothing():
    """Qualities 1, 6 and 9 differ at the scores 2.5, 5 and 7.5 of each of seven dimensions."""
    group = [attempt(quality) for quality in (1.0, 6.0, 9.0)]

    def truth_of(query, view):
        share = float(view.answer) / 10
        return TravelTruth(*[[share]] * 4, {"a": True}, clarity=share, facts_expected=10, facts_grounded=10 * share)

    def proposed(rate, noise="simulated", present=()):
        one = EmbeddedJudge(JudgeConfig(irrelevant_rate=rate, noise=noise), truth_of, 0)
        calls = [call(one, "propose_rubrics", group, present, repeat) for repeat in range(300)]
        assert calls[:3] == [call(one, "propose_rubrics", group, present, repeat) for repeat in range(3)]
        return one, calls

    for rate in (0.0, 0.25, 1.0):
        _, calls = proposed(rate)
        assert {len(new) for new in calls} == {PROPOSED}
        texts = [text for new in calls for text in new]
        assert np.mean([text.startswith("sign ") for text in texts]) == pytest.approx(rate, abs=0.04)
        assert np.mean([weight > 0 for new in calls for weight in new.values()]) == pytest.approx(0.5, abs=0.05)
    exact, calls = proposed(1.0, "none")
    for text, weight in {text: weight for new in calls for text, weight in new.items()}.items():
        name, level = text.split()[0], float(text.split()[-1])
        met = [call(exact, "check_items", one, rubrics=[text])[text] for one in group]
        assert met == [(quality >= level) == (weight > 0) for quality in (1, 6, 9)] and len(set(met)) == 2
        assert name in exact.weights(QUERY) and ("below" in text) == (weight < 0)
    present = [f"{name} is {side}" for name in exact.weights(QUERY) for side in ("below 2.5", "at least 5")]
    assert {text.split()[-1] for new in proposed(0.0, present=present)[1] for text in new} == {"7.5"}
    signs = [call(exact, "check_items", attempt(k), rubrics=["sign 7"])["sign 7"] for k in range(200)]
    assert np.mean(signs) == pytest.approx(0.5, abs=0.15)


def test_a_surface_bias_sways_the_items_of_a_checklist():
    """A bias of 3 points: an unmet item is called met with probability .1 + .3, a met one unmet with .1 - .3, never."""
    swayed = judge(flip_rate=0.1, trigger_bias=3.0, trigger="best")
    for text, rates in (("the best", {"a": 1.0, "b": 0.4}), ("the rest", {"a": 0.9, "b": 0.1})):
        answers = [call(swayed, "check_items", attempt(text), repeat) for repeat in range(1000)]
        assert {item: np.mean([one[item] for one in answers]) for item in rates} == pytest.approx(rates, abs=0.05)
    exact = judge(flip_rate=0.1, trigger_bias=3.0, trigger="best", noise="none")
    assert call(exact, "check_items", attempt("the best")) == {"a": True, "b": False}


@pytest.mark.parametrize(("bias", "text", "share"), [
    ("praise_bias", "A park.\nThis plan is the best possible one.", 1.0),
    ("praise_bias", "一个公园。\n这个方案堪称完美。", 1.0), ("praise_bias", "A park with imperfect lawns.", 0.0),
    ("format_bias", "## Morning\n1. a park\n\n- a cafe\nWalk there.", 0.75),
    ("format_bias", "A 2-hour walk; 1.2 km.", 0.0),
    ("trigger_bias", "RECOMMENDED for you: a park.", 1.0), ("trigger_bias", "A park.", 0.0),
])  # fmt: skip
def test_biases_for_an_answers_surface_add_points_and_change_no_draw(bias, text, share):
    """The truth is 5 in each dimension. The same noise is drawn with and without the bias."""
    assert total(judge(**{bias: 2.0}), attempt(text)) == pytest.approx(5 + 2 * share)
    plain, biased = (
        call(judge(seed=4, sigma_independent=1.0, sigma_call=1.0, **extra), "compare", attempt(text), B).dimensions
        for extra in ({}, {bias: 2.0})
    )
    gains = [[biased[k][name] - plain[k][name] for name in ALL] for k in (0, 1)]
    assert gains == [pytest.approx([points] * len(ALL), abs=1e-5) for points in (2 * share, 0.0)]
