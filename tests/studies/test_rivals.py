"""Rivals on simulated groups: what each takes of a budget, and that a judge without errors makes them true."""

import asyncio
import json
import random
import subprocess
import sys

import numpy as np
import pytest

from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.travel.teacher import Teacher
from arenarl.domains.travel.truth import examine
from arenarl.studies.rivals import (
    BUDGETS,
    ITEMS,
    MODELS,
    Tokens,
    bracket_calls,
    brpo,
    flip_rate,
    items_met,
    markdown_table,
    methods,
    outcome_then_tournament,
)
from arenarl.studies.simulated_rankings import Group, Noise, Tally
from arenarl.tournament.ranking import midranks

EXACT = Noise(independent=0.0, position=0.0)
NOISY = Noise(independent=1.0)
TOKENS = Tokens(prompt=100, trajectory=1000, scores=50, listed=25, item=5)


def ranked(name, group, calls):
    return asyncio.run(methods(TOKENS)[name].rank(group, calls, TOKENS))


def tau(name, noise, calls=None, groups=40, size=8):
    tally = Tally()
    for seed in range(groups):
        group = Group(size, noise, seed)
        scores, *_ = ranked(name, group, calls or methods(TOKENS)[name].own(size))
        tally.add(group.quality_G, midranks(scores), (0, 0, 0))
    return np.mean(tally.tau)


def test_a_call_costs_what_it_shows_and_what_is_written():
    assert (TOKENS.pair, TOKENS.single, TOKENS.listwise(8)) == (100 + 2 * 1050, 100 + 1050, 100 + 8 * 1025)
    assert TOKENS.checklist == 100 + 1000 + 5 * ITEMS


@pytest.mark.parametrize("size", [8, 16])
def test_what_a_method_takes_is_its_own_or_within_the_brackets_calls_and_tokens(size):
    group, budget = Group(size, NOISY, 0), bracket_calls(size)
    assert budget == 4 * size - 4
    for name, method in methods(TOKENS).items():
        _, calls, tokens = ranked(name, group, method.own(size))
        if name in ("RULER", "BRPO", "TournO: Elo", "TournO: mixture", "pointwise scores"):
            assert calls == method.own(size)
        if method.is_flexible:
            _, calls, tokens = ranked(name, group, budget)
            assert budget - 2 <= calls <= budget
            _, calls, tokens = ranked(name, group, method.afforded(budget * TOKENS.pair, size))
            assert budget * TOKENS.pair - 2 * max(TOKENS.pair, TOKENS.listwise(size)) < tokens <= budget * TOKENS.pair
    own = [methods(TOKENS)[name].own(8) for name in ("RULER", "BRPO", "TournO: Elo", "TournO: mixture")]
    assert own == [1, 14, 48, 64]
    assert 1 < methods(TOKENS)["RULER"].afforded(budget * TOKENS.pair, size) < budget


def test_without_errors_methods_that_score_are_true_and_those_that_count_wins_nearly_so():
    for name in ("pointwise scores", "RULER", "RULER, 2 times the noise", "TournO: mixture"):
        assert tau(name, EXACT) > 0.93  # scores are rounded
    assert tau("TournO: Elo", EXACT) > 0.8 and tau("TournO: Elo's matches, Bradley-Terry", EXACT) > 0.85
    assert 0.3 < tau("BRPO", EXACT) < 0.75  # it tells the better from the worse than one member, no more


def test_a_listwise_judge_that_errs_more_is_less_true_and_its_mean_over_calls_truer():
    once, half_more, twice = (
        tau(name, NOISY) for name in ("RULER", "RULER, 1.5 times the noise", "RULER, 2 times the noise")
    )
    assert once > half_more > twice > 0.1 and tau("RULER", NOISY, calls=12) > once + 0.1


def test_a_listwise_calls_drift_is_nobodys_lead_and_position_is():
    assert tau("RULER", Noise(independent=0.0, shared=3.0, position=0.0)) > 0.93
    group = Group(5, Noise(independent=0.0, position=1.0), 3)
    leads = np.stack([group.listwise(call) - group.quality_G for call in range(200)])
    assert leads.mean(axis=0) == pytest.approx(0, abs=0.2) and leads.std(axis=0) == pytest.approx(0.71, abs=0.15)
    assert np.ptp(group.listwise(0, times=3.0) - group.quality_G) == pytest.approx(6.0, abs=0.3)


def test_brpo_is_the_sign_against_one_member_and_with_more_calls_against_further_ones():
    group = Group(4, EXACT, 1)
    quality_G = np.round(4 * group.quality_G)  # as the judge sees it: two of them draw
    scores, calls, _ = asyncio.run(brpo(group, 6, TOKENS))
    (reference,) = [g for g in range(4) if scores[g] == 0]
    assert calls == 6 and scores == [float(np.sign(quality - quality_G[reference])) for quality in quality_G]
    scores, calls, _ = asyncio.run(brpo(group, 10, TOKENS))  # three matches with the first, two with a second
    second = next(g for g in random.Random(1).sample(range(4), 4) if g != reference)
    expected = [
        np.mean([np.sign(quality - quality_G[other]) for other in (reference, second) if other != g])
        for g, quality in enumerate(quality_G)
    ]
    assert calls == 10 and scores == expected


def test_so_many_items_that_go_with_quality_so_much_are_what_the_travel_world_has(world, compact, taught):
    """Of groups of a teacher's attempts of all skills, as judge_check has them: constraints a query, and the
    correlation within groups."""
    teacher, counts, qualities, shares = Teacher(world, compact), [], [], []
    for number, one in enumerate(taught[::3]):
        attempts = [teacher.solve(one.query, random.Random(f"{number} {k}"), k / 8) for k in range(8)]
        truths = [examine(world, one.query, attempt.messages) for attempt in attempts]
        quality = np.array([domain_rubric("travel", "en").total(truth.dimensions()) for truth in truths])
        share = np.array([np.mean(list(truth.checklist().values())) for truth in truths])
        counts.append(len(truths[0].checklist()))
        qualities += list(quality - quality.mean())
        shares += list(share - share.mean())
        assert all(truth.checklist().keys() == truths[0].checklist().keys() for truth in truths)
    assert np.mean(counts) == pytest.approx(ITEMS, abs=1)
    assert np.corrcoef(qualities, shares)[0, 1] == pytest.approx(0.83, abs=0.06)


@pytest.mark.parametrize("by", ["item", "whole"])
def test_answers_agree_with_themselves_as_scores_do(by):
    """By item, or as a share of all: correlation of two askings is 1 / (1 + s²)."""
    rng = np.random.default_rng(1)
    rate = flip_rate(NOISY, by)
    met = items_met(rng.normal(size=20_000), rng)
    asked = [met ^ (rng.random(met.shape) < rate) for _ in range(2)]
    if by == "item":
        assert (1 - 2 * rate) ** 2 == pytest.approx(0.5)
    else:
        assert np.corrcoef(*(one.mean(axis=1) for one in asked))[0, 1] == pytest.approx(0.5, abs=0.02)
    assert flip_rate(EXACT, by) == pytest.approx(0.0, abs=1e-3)


def test_where_outcomes_differ_they_decide_and_nobody_is_asked():
    asked = [asyncio.run(outcome_then_tournament(Group(8, EXACT, seed), 28, TOKENS)) for seed in range(200)]
    free = [scores for scores, calls, _ in asked if calls == 0]
    assert all(set(scores) == {0.0, 1.0} for scores in free) and 70 < len(free) < 130


@pytest.mark.slow(seconds=8)
def test_it_runs_as_a_command(tmp_path):
    options = "--sizes 4 --groups 2 --processes 1".split()
    command = [sys.executable, "-m", "arenarl.studies.rivals", *options, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    summary = json.loads((tmp_path / "rivals.json").read_text())
    assert summary["judge"] == "simulated"
    assert markdown_table(summary) in done.stdout
    assert "simulated" in done.stdout.splitlines()[-1]
    assert {row["budget"] for row in summary["rows"]} == set(BUDGETS)
    assert {row["noise"] for row in summary["rows"]} == {kind for kind, _ in MODELS}
    assert {"tau", "tau_ci", "judge_calls", "tokens", "best_first"} <= set(summary["rows"][0])
