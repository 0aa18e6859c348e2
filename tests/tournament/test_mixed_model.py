"""The estimator: equal to dense textbook formulas, its invariances, and the recovery of known variances."""

import json
from dataclasses import asdict
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.tournament.mixed_model import JudgeVariances, quality_from_calls
from arenarl.tournament.ranking import midranks

QUALITY, NOISE, SHARED = 1.2, 0.6, 0.4


def known_variances(quality=QUALITY, noise=NOISE, shared=SHARED) -> JudgeVariances:
    """A state with so many observations that one more group does not change it."""
    much = 1e13
    variances = {"score": 1.0, "difference": 2 * noise, "sum": 4 * shared + 2 * noise, "quality": quality}
    squares = {f"{name}_ss": variance * much for name, variance in variances.items()}
    return JudgeVariances(**squares, **{f"{name}_df": much for name in variances})


def simulated_calls(rng, size, quality=1.0, noise=0.5, shared=0.5, position=0.3, is_bidirectional=True):
    """Return the true qualities (size,) and the calls of one group."""
    quality_G = rng.normal(scale=quality**0.5, size=size)
    calls = []
    for pair in [(i, (i + k) % size) for k in (1, 2) for i in range(size)]:
        for i, j in [pair, pair[::-1]][: 1 + is_bidirectional]:
            effect = rng.normal(scale=shared**0.5)
            errors = rng.normal(scale=noise**0.5, size=2)
            calls.append((i, j, quality_G[i] + position + effect + errors[0], quality_G[j] + effect + errors[1]))
    return quality_G, calls


def random_calls(rng, size, count):
    """Return random calls: repeats, single orders, entrants without a call, typical scores."""
    pairs = [rng.choice(size, 2, replace=False) for _ in range(count)]
    return [(int(i), int(j), *map(float, rng.integers(0, 21, 2) / 2)) for i, j in pairs]


def dense_blup(size, calls, quality, noise, shared):
    """Return the mean by generalised least squares plus E(q | scores), from the full covariance of the scores."""
    shown = np.array([entrant for i, j, _, _ in calls for entrant in (i, j)])
    scores = np.array([score for call in calls for score in call[2:]])
    call, position = np.repeat(np.arange(len(calls)), 2), np.tile([0.5, -0.5], len(calls))
    is_of_entrant = shown[:, None] == np.arange(size)
    covariance = quality * ((shown[:, None] == shown) + np.outer(position, position))
    covariance = covariance + shared * (call[:, None] == call) + noise * np.eye(len(scores))
    inverse = np.linalg.inv(covariance)
    mean = (inverse @ scores).sum() / inverse.sum()
    return mean + quality * is_of_entrant.T @ inverse @ (scores - mean)


def test_the_estimate_equals_the_textbook_blup():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(2, 7))
        calls = random_calls(rng, size, int(rng.integers(1, 15)))
        expected = dense_blup(size, calls, QUALITY, NOISE, SHARED)
        qualities = quality_from_calls(size, calls, known_variances())
        judged = {i for call in calls for i in call[:2]}
        assert {i for i, quality in enumerate(qualities) if quality is not None} == judged
        assert [qualities[i] for i in judged] == pytest.approx([expected[i] for i in judged], abs=1e-6)


def test_a_group_of_two_worked_by_hand():
    # Entrant 0 leads by 2 if shown first, by 4 if shown second. Both orders cancel the position. With q1 = -q0 and the
    # ridge 2 noise / quality = 1, the normal equation is (2 · 2 + 1) q0 = 2 + 4. The mean score is 5.
    state = known_variances(quality=1.0, noise=0.5, shared=0.0)
    assert quality_from_calls(2, [(0, 1, 6, 4), (1, 0, 3, 7)], state) == pytest.approx([5 + 6 / 5, 5 - 6 / 5])
    assert midranks(quality_from_calls(2, [(0, 1, 4, 6), (1, 0, 7, 3)])) == [1.0, 0.0]
    assert midranks(quality_from_calls(2, [(0, 1, 4, 6)])) == [1.0, 0.0]
    by_position = quality_from_calls(2, [(0, 1, 6, 4), (1, 0, 6, 4)])
    assert midranks(by_position) == [0.5, 0.5]


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 17), st.integers(1, 40), st.booleans())
def test_shifts_orders_labels_and_scales_change_the_estimate_as_expected(seed, size, count, is_pooled):
    rng = np.random.default_rng(seed)
    calls = random_calls(rng, size, count)
    state = known_variances() if is_pooled else None
    base = quality_from_calls(size, calls, state)
    judged = {i for call in calls for i in call[:2]}
    assert {i for i, quality in enumerate(base) if quality is not None and np.isfinite(quality)} == judged

    def expect(qualities, values):
        assert [v is None for v in qualities] == [v is None for v in values]
        assert [v for v in qualities if v is not None] == pytest.approx([v for v in values if v is not None], abs=1e-6)

    shifted = [(i, j, a + 3.25, b + 3.25) for i, j, a, b in calls]
    expect(quality_from_calls(size, shifted, state), [None if v is None else v + 3.25 for v in base])
    expect(quality_from_calls(size, [calls[k] for k in rng.permutation(count)], state), base)
    label = rng.permutation(size).tolist()
    relabelled = quality_from_calls(size, [(label[i], label[j], a, b) for i, j, a, b in calls], state)
    expect([relabelled[label[i]] for i in range(size)], base)
    if not is_pooled:
        scaled = [(i, j, a * 37.5, b * 37.5) for i, j, a, b in calls]
        expect([v and v / 37.5 for v in quality_from_calls(size, scaled)], base)


@pytest.mark.parametrize("size", [2, 3, 8, 16])
@pytest.mark.parametrize("state", [None, known_variances()])
def test_equal_scores_share_a_midrank(size, state):
    float_noise = [(i, j, 0.1 + 0.2, 0.3) for i, j in permutations(range(size), 2)]
    equal = [(i, j, 7.5, 7.5) for i, j in permutations(range(size), 2)]
    for calls in (equal, float_noise):
        assert midranks(quality_from_calls(size, calls, state)) == [(size - 1) / 2] * size


@pytest.mark.parametrize("noise, shared", [(1.0, 0.0), (0.49, 0.49), (0.25, 2.25), (0.0, 0.0)])
@pytest.mark.parametrize("is_bidirectional", [True, False])
def test_the_variances_are_recovered_from_many_groups(noise, shared, is_bidirectional):
    rng = np.random.default_rng(1)
    state = JudgeVariances(memory=1e9)
    for _ in range(400):
        state.observe(8, simulated_calls(rng, 8, 2.0, noise, shared, 0.5, is_bidirectional)[1])
    assert state.quality == pytest.approx(2.0, rel=0.12)
    assert state.noise == pytest.approx(noise, rel=0.1, abs=0.01)
    assert state.shared == pytest.approx(shared, rel=0.12, abs=0.05)


def test_old_groups_are_forgotten_and_the_state_survives_json_and_ranking():
    rng, state = np.random.default_rng(2), JudgeVariances(memory=500)
    for noise in (4.0, 0.25):
        for _ in range(100):
            state.observe(6, simulated_calls(rng, 6, noise=noise)[1])
    assert state.noise == pytest.approx(0.25, rel=0.2)
    rng = np.random.default_rng(3)
    state = JudgeVariances(memory=300)
    state.observe(5, simulated_calls(rng, 5)[1])
    saved = json.dumps(asdict(state))
    calls = simulated_calls(rng, 5)[1]
    restored = JudgeVariances(**json.loads(saved))
    assert restored == state
    assert quality_from_calls(5, calls, restored) == quality_from_calls(5, calls, state)
    assert json.dumps(asdict(state)) == saved


def test_pooled_variances_rank_closer_to_the_truth_than_wrong_variances():
    rng = np.random.default_rng(4)
    pooled, wrong = JudgeVariances(), known_variances(quality=1, noise=2.25, shared=0)
    error = {"pooled": 0.0, "wrong": 0.0}
    for _ in range(100):
        quality_G, calls = simulated_calls(rng, 8, noise=0.25, shared=2.25)
        for name, state in (("pooled", pooled), ("wrong", wrong)):
            estimate = np.array(quality_from_calls(8, calls, state))
            error[name] += np.square(estimate - estimate.mean() - quality_G + quality_G.mean()).sum()
        pooled.observe(8, calls)
    assert error["pooled"] < 0.8 * error["wrong"]
