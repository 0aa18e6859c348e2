"""From cases to figures: which cases and outcomes count."""

from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arenarl.config.schema import Config
from arenarl.domains.rubrics import domain_rubric
from arenarl.domains.travel.truth import TravelTruth
from arenarl.evaluation.evaluation import Case, Panel, gather_cases, judge_trajectories, summarize
from arenarl.evaluation.inference_scaling import pass_at_k, within
from arenarl.evaluation.playoffs import play_offs
from arenarl.judges.judge import Verdict
from arenarl.report.summary import print_table
from arenarl.system.errors import UserError
from arenarl.trajectory import Query, Trajectory

RUBRIC = domain_rubric("travel", "en")
DIMENSIONS = len(RUBRIC.names)


def case(number, is_valid, outcomes):
    """Return an evaluated case; an invalid trajectory loses with every judge without being judged."""
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<answer>\n!\n</answer>"}]
    trajectory = Trajectory(f"q{number}", messages, "answer" if is_valid else "max_turns", meta={"turns": 1})
    outcomes = outcomes if is_valid else np.full_like(outcomes, -1.0)
    return Case(Query(f"q{number}", "travel", "Search", "en", "?"), trajectory, None, outcomes)


def table(capsys, figures, **summary):
    """Return the printed table of one policy, `a sampled`."""
    print_table({"judge": "some", "checkpoints": ["a"], "a": {"sampled": figures}} | summary)
    return capsys.readouterr().out


@pytest.mark.parametrize("valid_share", [0.1, 0.3, 1.0])
def test_judges_that_toss_coins_do_not_agree_at_any_share_of_invalid_trajectories(valid_share):
    rng = np.random.default_rng(0)
    cases = [
        case(number, rng.random() < valid_share, rng.choice([1.0, 0.0, -1.0], size=(2, DIMENSIONS)))
        for number in range(1000)
    ]
    agree = summarize(cases, 0, 0)["judges_agree"]
    assert agree["cases"] == DIMENSIONS * sum(one.trajectory.valid for one in cases)
    assert agree["kappa"] == pytest.approx(0, abs=0.06) and agree["agreement"] == pytest.approx(1 / 3, abs=0.06)


def test_a_case_without_verdicts_of_both_judges_does_not_count_as_agreement(capsys):
    outcomes = np.ones((2, DIMENSIONS))
    outcomes[1] = np.nan
    summary = summarize([case(0, True, outcomes), case(1, True, np.ones((2, DIMENSIONS)))], 0, 0)
    assert summary["judges_agree"]["cases"] == DIMENSIONS and summary["missing_verdicts"] == 1
    figures = summarize([case(number, False, np.ones((2, DIMENSIONS))) for number in range(3)], 0, 0)
    assert figures["judges_agree"]["agreement"] is None and figures["win_rate"]["mean"] == 0
    assert "agree on these shares of outcomes: - (no case judged by both)" in table(capsys, figures)


class Ten:
    """Scores a trajectory by the number in its query's id; gives no verdict on q3."""

    async def score(self, query, trajectory, answer_only=False, repeat=0):
        score = float(query.query_id[1:])
        return None if score == 3 else Verdict((dict.fromkeys(RUBRIC.names, score),), RUBRIC.total)


def test_without_a_baseline_a_trajectory_is_scored_alone(capsys):
    cases = [case(number, number != 2, np.ones((1, DIMENSIONS))) for number in range(5)]
    void = replace(cases[0].trajectory, stop_reason="tool_crash")
    queries, trajectories = [one.query for one in cases] + [cases[0].query], [one.trajectory for one in cases] + [void]
    judged = judge_trajectories(queries, trajectories, {}, Panel([Ten()], None))
    assert [one.score for one in judged[:3]] == [0, 1, 0] and judged[4].score == 4  # q2 is invalid
    figures = summarize(judged, 0, 0)
    assert figures["score"]["mean"] == (0 + 1 + 0 + 4) / 4 and figures["win_rate"]["mean"] is None
    assert figures["missing_verdicts"] == 1 and figures["tool_crashes"] == 1 and "quality" not in figures
    assert judged[3].to_record()["score"] is None and judged[4].to_record()["score"] == 4.0
    assert within(judged[4], 0).score == 0.0 and within(judged[4], 1) is judged[4]
    assert pass_at_k([judged, judged], 0, 0)["win"][0]["mean"] is None
    told = table(capsys, figures, reference="a sampled")
    assert "score 0-10" in told and "win rate against `a sampled`, judged by some (not the stored baseline)" in told


def test_void_trajectories_are_counted_by_their_end(capsys):
    cases = [case(number, True, np.ones((1, DIMENSIONS))) for number in range(6)]
    for one, end in zip(cases, ["tool_crash", "no_room", "no_room"], strict=False):
        one.trajectory = replace(one.trajectory, stop_reason=end)
        one.outcomes = np.full_like(one.outcomes, np.nan)
    figures = summarize(cases, 0, 0)
    assert (figures["cases"], figures["tool_crashes"], figures["no_room"]) == (3, 1, 2)
    assert figures["valid_rate"]["mean"] == 100 and not {"tool_crashes", "no_room"} & summarize(cases[3:], 0, 0).keys()
    printed = table(capsys, figures)
    assert "1 trajectories ended with a tool's crash" in printed and "2 prompts were too long" in printed


def test_noise_free_figures_use_only_queries_with_a_truth():
    known, unknown = (case(number, True, np.ones((1, DIMENSIONS))) for number in range(2))
    known.truth = TravelTruth(*[[0.5]] * 4, {}, clarity=0.5)
    for cases in ([known, unknown], [unknown, known]):
        figures = summarize(cases, 0, 0)
        assert figures["quality"]["mean"] == pytest.approx(known.quality)
        assert figures["by_dimension"]["path_breadth"]["score"]["mean"] == 5.0
        assert set(pass_at_k([cases, cases], 0, 0)) == {"win", "constraints"}
    assert "quality" not in summarize([unknown], 0, 0) and "findings" in unknown.to_record()


def test_neither_a_void_baseline_nor_a_dimension_that_a_judge_never_scores_gives_an_outcome():
    cases = [case(number, True, np.ones((1, DIMENSIONS))) for number in range(2)]
    baselines = {one.query.query_id: replace(one.trajectory, stop_reason="tool_crash") for one in cases[:1]}
    baselines[cases[1].query.query_id] = replace(cases[1].trajectory, meta={"turns": 1})
    trajectories = [replace(one.trajectory, meta={"turns": 2}) for one in cases]
    judged = judge_trajectories([one.query for one in cases], trajectories, baselines, Panel([Paths()], None))
    assert np.isnan(judged[0].outcomes).all() and judged[1].outcomes[0, 0] == 1
    assert summarize(judged[:1], 0, 0)["win_rate"]["mean"] is None
    invalid = replace(judged[0], trajectory=replace(judged[0].trajectory, stop_reason="no_answer"))
    for without in (judged[0], invalid, within(judged[0], 0)):
        assert pass_at_k([[without], [without]], 0, 0)["win"][0]["mean"] is None
    # Otherwise each dimension that the judge skips would add a zero to the mean win rate.
    cases = [case(number, number % 2 == 0, np.ones((1, DIMENSIONS))) for number in range(10)]
    trajectories = [replace(one.trajectory, meta={"turns": 2}) for one in cases]
    baselines = {one.query.query_id: one.trajectory for one in cases}
    queries, parts = [one.query for one in cases], []
    for share in (slice(0, None, 2), slice(1, None, 2)):  # of two processes; the second one's trajectories are invalid
        parts += judge_trajectories(queries[share], trajectories[share], baselines, Panel([Paths()], None))
    judged = gather_cases(queries, parts)
    assert summarize(judged, 0, 0)["win_rate"]["mean"] == 50 and summarize(judged, 0, 0)["missing_verdicts"] == 0
    cut = [within(one, 0) for one in judged]
    assert [np.isfinite(one.outcomes).sum() for one in cut] == [1] * 10
    assert summarize(cut, 0, 0)["win_rate"]["mean"] == 0


class Paths:
    """Scores only the first dimension, by the number of turns."""

    async def compare(self, query, first, second, repeat=0):
        return Verdict(tuple({RUBRIC.names[0]: float(one.meta["turns"])} for one in (first, second)), RUBRIC.total)


def test_an_invalid_stand_in_loses_unjudged_to_valid_trajectories_in_every_figure():
    """Both valid, only the policy's, only the stand-in, none."""
    cases = [case(number, number in (0, 1), np.ones((1, DIMENSIONS))) for number in range(4)]
    standing = {one.query.query_id: case(k, k in (0, 2), one.outcomes).trajectory for k, one in enumerate(cases)}
    for trajectory in standing.values():
        trajectory.messages[1]["content"] = "<answer>\nother\n</answer>"
    trajectories = [replace(one.trajectory, meta={"turns": 2}) for one in cases]
    panel, queries = Panel([Paths()], None, is_own=True), [one.query for one in cases]
    judged = gather_cases(queries, judge_trajectories(queries, trajectories, standing, panel, has_stand_ins=True))
    assert [one.outcomes[0, 0] for one in judged] == [1, 1, -1, 0]
    assert [bool(one.calls) for one in judged] == [True, False, False, False]
    assert all(np.isnan(one.outcomes[0, 1:]).all() for one in judged)  # the judge scores one dimension
    assert [within(one, 0).outcomes[0, 0] for one in judged] == [-1, 0, -1, 0]
    assert summarize(judged, 50, 0)["win_rate"]["mean"] == pytest.approx(200 / 3, abs=1e-3)
    assert [pass_at_k([[one]] * 2, 0, 0)["win"][0]["mean"] for one in judged] == [100, 100, 0, 0]
    stored = judge_trajectories(queries, trajectories, standing, panel)
    assert [one.outcomes[0, 0] for one in stored] == [1, 1, -1, -1] and stored[1].calls

    lines = play_offs(queries, standing, {"a": judged, "b": judged}, panel.judges, False, 0, has_stand_ins=True)
    assert [line["ranks_G"] for line in lines] == [[2, 0.5, 0.5], [2, 0.5, 0.5], [0, 1.5, 1.5], [1, 1, 1]]
    assert [bool(line["matches"]) for line in lines] == [True, False, False, False]


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([-1.0, 0.0, 1.0]), st.sampled_from("ab")), min_size=1), st.data()
)
def test_no_interval_of_a_users_own_data_has_width_0_and_every_figure_has_its_number_of_cases(kinds, data):
    cases = []
    for number, (is_valid, outcome, subtask) in enumerate(kinds):
        one = case(number, is_valid, np.full((1, DIMENSIONS), outcome))
        query = replace(one.query, subtask=subtask, query_id=f"q{number // data.draw(st.sampled_from([1, 2]))}")
        cases.append(replace(one, query=query, is_own=True, score=data.draw(st.sampled_from([None, 0.0, 10.0]))))

    def check(figures):
        for name, figure in figures.items():
            if isinstance(figure, dict) and "ci" in figure:
                low, high = figure["ci"]
                assert low is None or low < high, (name, figure)
                assert 0 < figure["n"] <= len(cases) if figure["mean"] is not None else not figure.get("n")
                assert low is None or low <= figure["mean"] <= high, (name, figure)
            elif isinstance(figure, dict):
                check(figure)

    figures = summarize(cases, 50, 0)
    check(figures | {"pass": dict(enumerate(pass_at_k([cases, cases], 50, 0)["win"]))})
    assert figures["win_rate"]["n"] == sum(not is_valid or outcome != 0 for is_valid, outcome, _ in kinds)


def test_the_table_shows_the_number_of_cases_and_the_worlds_reward_as_training_counts_it(capsys):
    ties = [case(number, True, np.zeros((1, DIMENSIONS))) for number in range(7)]
    cases = [replace(one, is_own=True) for one in [*ties, case(7, False, np.ones((1, DIMENSIONS)))]]
    figures = summarize(cases, 50, 0)
    printed = table(capsys, figures, reference="b greedy")
    head, row, *_ = printed.splitlines()
    assert head.split()[:3] == ["n", "win", "rate"] and row.startswith("a sampled  8  0.0 [0.0, 79.3] (n=1)")
    assert "  87.5 [" in row and "noise-free" not in printed
    cases = [case(number, True, np.ones((1, DIMENSIONS))) for number in range(5)]
    assert "world_reward" not in summarize(cases, 0, 0)
    rewards = {"reward": 1.0}, {"reward": 0.25}, {}, {"reward": None}, {"reward": 9.0}
    for one, meta in zip(cases, rewards, strict=True):
        one.trajectory.meta |= meta
    cases[4].trajectory.stop_reason = "tool_crash"
    figures = summarize(cases, 50, 0)
    reward = figures["world_reward"]
    assert reward["mean"] == pytest.approx((1 + 0.25 + 0) / 3, abs=1e-4) and None not in reward["ci"]
    output = table(capsys, figures)
    assert "world's reward" in output and "  0.42 [" in output and "noise-free" not in output


@pytest.mark.parametrize(("verifier", "part"), [
    ({}, "; quality, accuracy and entities are noise-free; ["),
    ({"verifier": "o4-mini"}, "; entities are noise-free; quality and accuracy by o4-mini; ["),
])  # fmt: skip
def test_figures_verified_by_an_llm_are_not_called_noise_free(verifier, part, capsys):
    names = ("win_rate", "quality", "valid_rate", "accuracy", "entity_recall")
    figures = dict.fromkeys(names, {"mean": 1.0, "ci": [0.0, 2.0]}) | {"judges_agree": None, "missing_verdicts": 0}
    assert part in table(capsys, figures, **verifier)


@pytest.mark.parametrize(("query", "benchmark", "words"), [
    ("", None, "--query is empty; write the query in quotes, or leave the option out"),
    (" \n", None, "--query is empty; write the query in quotes, or leave the option out"),
    ("A cafe?", ["simpleqa"], "--query and --benchmark exclude each other; leave one of them out"),
])  # fmt: skip
def test_an_empty_query_and_a_query_beside_a_benchmark_are_refused(query, benchmark, words):
    from evaluate import check_arguments

    with pytest.raises(UserError, match=words):
        check_arguments(Namespace(query=query, benchmark=benchmark, items=None, seed=None), Config(), processes=1)
