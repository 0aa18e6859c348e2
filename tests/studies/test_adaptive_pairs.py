"""The study of matches in rounds: what its topology plays, by what it chooses, and what it writes."""

import json
import subprocess
import sys
from random import Random

import numpy as np
import pytest
from judges import perfect
from scipy.stats import kendalltau

from arenarl.studies.adaptive_pairs import OWN, Adaptive, _variances_after, markdown_table, taus
from arenarl.tournament.play import run_tournament
from arenarl.tournament.schedules import parse_budget


@pytest.mark.parametrize("rounds", [1, 2, 3, 50])
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_it_plays_its_budget_in_its_rounds_and_no_pair_twice(size, rounds):
    qualities = Random(size).sample(range(100), size)
    ranking = run_tournament(OWN, size, perfect(qualities), rounds=rounds)
    budget = parse_budget("2n-2", size)
    assert len({frozenset((match.i, match.j)) for match in ranking.matches}) == len(ranking.matches) == budget
    assert ranking.critical_path == min(rounds, budget)
    assert kendalltau(qualities, [-rank for rank in ranking.ranks_G]).statistic > 0.9


def test_failed_matches_count_as_played():
    async def fails(i, j):
        return None if 0 in (i, j) else (float(i), float(j))

    ranking = run_tournament(OWN, 8, fails)
    assert len(ranking.matches) == 14 and ranking.failed_matches and ranking.ranks_G[0] is None


def test_the_variances_after_a_match_are_those_of_the_posterior_with_it():
    rng, topology = np.random.default_rng(0), Adaptive(5, noise=0.3, shared=0.7)
    pairs = [(i, j) for i in range(5) for j in range(i)]
    to_d, to_t = topology._designs(pairs)
    root = rng.normal(size=(7, 7))
    precision = root @ root.T + np.eye(7)
    after = _variances_after(np.linalg.inv(precision), to_d, to_t, 0.3, 1.7)
    for row, (d, t) in enumerate(zip(to_d, to_t, strict=True)):
        covariance = np.linalg.inv(precision + np.outer(d, d) / 0.3 + np.outer(t, t) / 1.7)
        assert after[row] == pytest.approx(np.einsum("pn,nm,pm->p", to_d, covariance, to_d))


def test_the_pairs_to_expect_in_the_wrong_order_are_those_that_turn_out_so():
    """2 T(|m| / s, s' / √(s² - s'²)), by drawing true differences and what a match would say of them."""
    from scipy.special import owens_t

    rng, m, s, noise = np.random.default_rng(0), 0.4, 0.9, 0.6
    truth = rng.normal(m, s, 200_000)
    weight = s**2 / (s**2 + noise**2)
    found = m + weight * (truth + rng.normal(0, noise, truth.size) - m)
    after = s * noise / np.hypot(s, noise)
    assert np.mean(truth * found < 0) == pytest.approx(2 * owens_t(m / s, after / np.sqrt(s**2 - after**2)), abs=0.003)


def test_a_shared_rank_is_half_right():
    assert taus(np.array([3.0, 2.0, 1.0]), [0, 1, 2]) == (1.0, 1.0)
    tau_b, tau = taus(np.array([3.0, 2.0, 1.0]), [0.5, 0.5, 2])
    assert tau == pytest.approx(2 / 3) and tau_b == pytest.approx(2 / 6**0.5)


@pytest.mark.slow(seconds=8)
def test_it_runs_as_a_command(tmp_path):
    command = [
        sys.executable,
        "-m",
        "arenarl.studies.adaptive_pairs",
        "--size",
        "6",
        "--groups",
        "3",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    summary = json.loads((tmp_path / "adaptive.json").read_text())
    assert (
        summary["judge"] == "simulated"
        and markdown_table(summary) in done.stdout
        and "simulated" in done.stdout.splitlines()[-1]
    )
