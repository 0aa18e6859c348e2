"""Play-offs reuse the verdicts of the win rate and change no figure."""

import copy
from dataclasses import replace
from functools import partial

import pytest
from finished_run import StoredRollouts

from arenarl.config.schema import JudgeConfig
from arenarl.domains.travel.truth import examine
from arenarl.evaluation.evaluation import Panel, evaluate_policy, summarize
from arenarl.evaluation.inference_scaling import scaling_figures
from arenarl.evaluation.playoffs import play_offs
from arenarl.judges.embedded import EmbeddedJudge
from arenarl.judges.judge import cached_examiner
from arenarl.report.summary import print_table

DECODINGS = ("sft greedy", "sft sampled", "rl greedy", "rl sampled")


class Counting(EmbeddedJudge):
    """An embedded judge that records its comparisons."""

    asked = ()

    async def compare(self, query, first, second, repeat=0):
        self.asked += ((query.query_id, repr(first.messages), repr(second.messages)),)
        return await super().compare(query, first, second, repeat)


@pytest.fixture
def evaluated(taught, world):
    """(queries, baselines, cases by name, judges); the policies' trajectories are a teacher's for other queries."""
    examiner = cached_examiner(partial(examine, world))
    judges = [Counting(JudgeConfig(), examiner, seed) for seed in (1, 2)]
    queries = [one.query for one in taught[::20]]
    baselines = {one.query.query_id: one.trajectory for one in taught[::20]}
    cases = {}
    for k, name in enumerate(DECODINGS, start=1):
        pairs = zip(queries, taught[k::20], strict=False)
        trajectories = {query.query_id: copy.deepcopy(other.trajectory) for query, other in pairs}
        if name == "rl sampled":
            trajectories[queries[0].query_id].stop_reason = "max_turns"
            trajectories[queries[1].query_id] = cases["rl greedy"][1].trajectory
        panel = Panel(judges, judges[0].examine)
        cases[name] = evaluate_policy(StoredRollouts(trajectories), queries, baselines, panel, 0.0, 0)
    return queries, baselines, cases, judges


def lines_of(evaluated, bracket, judge=0):
    queries, baselines, cases, judges = evaluated
    lines = play_offs(queries, baselines, cases, judges, bracket, seed=0)
    assert [line["query_id"] for line in lines[:: len(judges)]] == [query.query_id for query in queries]
    return [line for line in lines if line["judge"] == judge]


def test_no_pair_is_judged_twice_and_without_a_bracket_no_new_match(evaluated):
    queries, baselines, cases, judges = evaluated
    before = len(judges[0].asked)
    lines_of(evaluated, bracket=True)
    calls = judges[0].asked[before:]
    assert calls and len(set(calls)) == len(calls) <= len(queries) * (2 * len(cases) - 2)
    assert not any(repr(baselines[query_id].messages) in shown for query_id, *shown in calls)
    before = [judge.asked for judge in evaluated[3]]
    lines = lines_of(evaluated, bracket=False)
    assert [judge.asked for judge in evaluated[3]] == before
    assert {line["topology"] for line in lines} == {"anchor"} and not any(line["bracket"] for line in lines)
    assert {line["topology"] for line in lines_of(evaluated, bracket=True, judge=1)} == {"anchor"}
    assert evaluated[3][1].asked == before[1]


@pytest.mark.parametrize("bracket", [True, False])
def test_matches_with_the_baseline_reuse_the_verdicts_of_the_win_rate(evaluated, bracket):
    names = ["baseline", *DECODINGS]
    for number, line in enumerate(lines_of(evaluated, bracket)):
        assert line["entrants"] == names
        for match in line["matches"]:
            if match["i"] == 0 or match["j"] == 0:
                case = evaluated[2][names[match["i"] or match["j"]]][number]
                details = {call["first"] == 0: call["detail"] for call in match["calls"]}
                assert details == {False: list(case.calls[0][0].dimensions), True: list(case.calls[0][1].dimensions)}


def test_invalid_and_identical_trajectories_share_ranks_and_a_missing_verdict_fails_its_match(evaluated):
    first, second = lines_of(evaluated, bracket=True)[:2]
    assert first["ranks_G"][4] == max(first["ranks_G"])
    assert all(4 not in (match["i"], match["j"]) for match in first["matches"])
    assert second["ranks_G"][3] == second["ranks_G"][4]
    queries, baselines, cases, judges = evaluated
    silent = cases["sft greedy"][2]
    cases["sft greedy"][2] = replace(silent, calls=[(silent.calls[0][0], None), silent.calls[1]])
    line = lines_of((queries, baselines, cases, judges), bracket=True)[2]
    failed = [match for match in line["matches"] if any(call["scores"] is None for call in match["calls"])]
    assert [{match["i"], match["j"]} for match in failed] == [{0, 1}] and None not in line["ranks_G"]


def test_the_bracket_leads_from_the_seeds_to_the_best_and_changes_no_figure(evaluated):
    for line in lines_of(evaluated, bracket=True):
        rounds = line["bracket"]
        for places, following in zip(rounds, rounds[1:], strict=False):
            entrants = [entrant for place in following for entrant in (place.i, place.j)]
            assert [place.winner for place in places] == entrants
        assert len(rounds[-1]) == 1 and line["ranks_G"][rounds[-1][0].winner] <= 0.5
    cases = evaluated[2]["rl sampled"]
    before = [case.to_record() for case in cases], summarize(cases, 10, 0)
    assert lines_of(evaluated, bracket=True) == lines_of(evaluated, bracket=True)
    assert ([case.to_record() for case in cases], summarize(cases, 10, 0)) == before


def test_a_void_trajectory_is_counted_but_enters_no_figure(evaluated):
    """All figures equal those of the other queries alone: win rates, truths, pass@k, turn budgets."""
    queries, baselines, cases, judges = evaluated
    trajectories = {case.query.query_id: copy.deepcopy(case.trajectory) for case in cases["rl greedy"]}
    void = [query.query_id for query in queries[::3]]
    for query_id in void:
        trajectories[query_id].stop_reason = "tool_crash"
    others = [query for query in queries if query.query_id not in void]
    panel = Panel(judges, judges[0].examine)
    asked = sum(len(judge.asked) for judge in judges)
    crashed = evaluate_policy(StoredRollouts(trajectories), queries, baselines, panel, 0.0, 0)
    kept = evaluate_policy(StoredRollouts(trajectories), others, baselines, panel, 0.0, 0)
    assert sum(len(judge.asked) for judge in judges) - asked == 2 * 2 * 2 * len(others)
    whole, without = (summarize(some, 0, 0) | scaling_figures([some, some], [2], 0, 0) for some in (crashed, kept))
    assert whole.pop("tool_crashes") == len(void) and "tool_crashes" not in without
    for figures in (whole, without):
        figures["by_subtask"] = {name: figure for name, figure in figures["by_subtask"].items() if figure["cases"]}
    assert whole == without and whole["missing_verdicts"] == 0
    for case in crashed:
        record = case.to_record()
        is_empty = record["findings"] == {} and set(sum(record["outcomes"], [])) == {None}
        assert is_empty == case.trajectory.is_void
    assert len(play_offs(queries, baselines, {"rl greedy": crashed}, judges, True, 0)) == len(queries) * len(judges)


def test_an_evaluation_of_only_void_trajectories_has_no_figures(evaluated):
    queries, baselines, cases, judges = evaluated
    trajectories = {one.query.query_id: replace(one.trajectory, stop_reason="tool_crash") for one in cases["rl greedy"]}
    panel = Panel(judges, judges[0].examine)
    crashed = evaluate_policy(StoredRollouts(trajectories), queries, baselines, panel, 0.0, 0)
    summary = summarize(crashed, 10, 0) | scaling_figures([crashed, crashed], [2], 10, 0)
    assert (summary["tool_crashes"], summary["cases"]) == (len(queries), 0)
    names = ("win_rate", "valid_rate", "quality", "tool_calls", "groundedness")
    assert {summary[name]["mean"] for name in names} == {None}
    print_table({"checkpoints": ["rl"], "rl": {"greedy": summary}, "judge": "embedded"})
