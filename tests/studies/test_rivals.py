"""Rivals on simulated groups: their calls and tokens, and true rankings with a judge without errors."""

import json
import random
import sys

import numpy as np
import pytest

from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.travel.teacher import Teacher
from arenarl.domains.travel.truth import examine
from arenarl.studies import rivals
from arenarl.studies.rivals import ITEMS, MODELS, TOKENS, bracket_calls, brpo, flip_rate, items_met, methods
from arenarl.studies.simulated_rankings import Group, Noise, Tally
from arenarl.tournament.ranking import midranks

EXACT = Noise(independent=0.0, position=0.0)
NOISY = Noise(independent=1.0)


def tau(name, noise, calls=None, groups=40, size=8):
    tally = Tally()
    for seed in range(groups):
        group = Group(size, noise, seed)
        method = methods()[name]
        scores, *_ = method.rank(group, calls or method.own(size))
        tally.add(group.quality_G, midranks(scores), (0, 0, 0))
    return np.mean(tally.tau)


def test_a_call_costs_the_tokens_read_and_written():
    assert (TOKENS.pair, TOKENS.single, TOKENS.listwise(8)) == (800 + 2 * 4060, 800 + 4060, 800 + 8 * 4050)
    assert TOKENS.checklist == 800 + 4000 + 8 * ITEMS


@pytest.mark.parametrize("size", [8, 16])
def test_a_method_makes_its_own_calls_or_stays_within_the_budget(size):
    group, budget = Group(size, NOISY, 0), bracket_calls(size)
    assert budget == 4 * size - 4
    for name, method in methods().items():
        _, calls, tokens = method.rank(group, method.own(size))
        if name in ("RULER", "BRPO", "TournO: Elo", "TournO: mixture", "pointwise scores"):
            assert calls == method.own(size)
        if method.is_flexible:
            _, calls, tokens = method.rank(group, budget)
            assert budget - 2 <= calls <= budget
            _, calls, tokens = method.rank(group, method.afforded(budget * TOKENS.pair, size))
            rest = budget * TOKENS.pair - tokens
            assert 0 <= rest < 2 * max(TOKENS.pair, TOKENS.listwise(size))
    own = [methods()[name].own(8) for name in ("RULER", "BRPO", "TournO: Elo", "TournO: mixture")]
    assert own == [1, 14, 48, 64]
    assert 1 < methods()["RULER"].afforded(budget * TOKENS.pair, size) < budget


@pytest.mark.parametrize("size", range(2, 17))
def test_no_score_counts_that_was_not_drawn(size):
    group, budget = Group(size, NOISY, 0), bracket_calls(size) * TOKENS.pair
    group.point_scores[:] = np.arange(size * size).reshape(size, size)
    scores, calls, _ = rivals.pointwise(group, methods()["pointwise scores"].afforded(budget, size))
    used = [row[: calls // size + (place < calls % size)] for place, row in enumerate(group.point_scores)]
    assert scores == [np.mean(row) for row in used] and sum(map(len, used)) == calls


def test_scores_rank_truly_without_errors_and_less_so_with_more_noise():
    for name in ("pointwise scores", "RULER", "RULER, 2 times the noise", "TournO: mixture"):
        assert tau(name, EXACT) > 0.93  # scores are rounded
    assert tau("TournO: Elo", EXACT) > 0.8 and tau("TournO: Elo's matches, Bradley-Terry", EXACT) > 0.85
    assert 0.3 < tau("BRPO", EXACT) < 0.75  # it only splits the group into better and worse than one member
    single, half_more, double = (
        tau(f"RULER{noise}", NOISY) for noise in ("", ", 1.5 times the noise", ", 2 times the noise")
    )
    assert single > half_more > double > 0.1 and tau("RULER", NOISY, calls=12) > single + 0.1


def test_a_listwise_calls_drift_changes_no_rank_and_its_position_bias_does():
    assert tau("RULER", Noise(independent=0.0, shared=3.0, position=0.0)) > 0.93
    group = Group(5, Noise(independent=0.0, position=1.0), 3)
    leads = np.stack([group.listwise(call) - group.quality_G for call in range(200)])
    assert leads.mean(axis=0) == pytest.approx(0, abs=0.2) and leads.std(axis=0) == pytest.approx(0.71, abs=0.15)
    assert np.ptp(group.listwise(0, times=3.0) - group.quality_G) == pytest.approx(6.0, abs=0.3)


def test_brpo_scores_by_the_sign_against_one_reference_and_with_more_calls_several():
    group = Group(4, EXACT, 1)
    quality_G = np.round(4 * group.quality_G)  # the judge's rounded scores; two are equal
    scores, calls, _ = brpo(group, 6)
    (reference,) = [g for g in range(4) if scores[g] == 0]
    assert calls == 6 and scores == [float(np.sign(quality - quality_G[reference])) for quality in quality_G]
    scores, calls, _ = brpo(group, 10)  # three matches with the first reference, two with a second
    second = next(g for g in random.Random(1).sample(range(4), 4) if g != reference)
    expected = [
        np.mean([np.sign(quality - quality_G[other]) for other in (reference, second) if other != g])
        for g, quality in enumerate(quality_G)
    ]
    assert calls == 10 and scores == expected


def test_number_of_items_and_their_correlation_with_quality_are_the_travel_worlds(world, compact, taught):
    """Measured on groups of the teacher's attempts of all skills, as in judge_check; correlation within groups."""
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
def test_repeated_answers_correlate_as_repeated_scores_do(by):
    """Repeated answers correlate by 1 / (1 + s²), for single items or for shares of all items."""
    rng = np.random.default_rng(1)
    rate = flip_rate(NOISY, by)
    met = items_met(rng.normal(size=20_000), rng)
    askings = [met ^ (rng.random(met.shape) < rate) for _ in range(2)]
    if by == "item":
        assert (1 - 2 * rate) ** 2 == pytest.approx(0.5)
    else:
        assert np.corrcoef(*(answers.mean(axis=1) for answers in askings))[0, 1] == pytest.approx(0.5, abs=0.02)
    assert flip_rate(EXACT, by) == pytest.approx(0.0, abs=1e-3)


def test_differing_outcomes_decide_without_a_judge_call():
    results = [rivals.outcome_then_tournament(Group(8, EXACT, seed), 28) for seed in range(200)]
    free = [scores for scores, calls, _ in results if calls == 0]
    assert all(set(scores) == {0.0, 1.0} for scores in free) and 70 < len(free) < 130


@pytest.mark.slow(seconds=4)
def test_it_writes_every_budget_and_noise(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rivals, "WARM_UP", 0)
    monkeypatch.setattr(sys, "argv", f"_ --sizes 4 --groups 2 --processes 1 --out {tmp_path}".split())
    rivals.main()
    out, summary = capsys.readouterr().out, json.loads((tmp_path / "rivals.json").read_text())
    assert rivals.markdown_table(summary) in out
    assert "simulated" in out.splitlines()[-1] and summary["judge"] == "simulated"
    assert {row["budget"] for row in summary["rows"]} == set(rivals.BUDGETS)
    assert {row["noise"] for row in summary["rows"]} == {kind for kind, _ in MODELS}
    assert {"tau", "tau_ci", "judge_calls", "tokens", "best_first"} <= set(summary["rows"][0])
