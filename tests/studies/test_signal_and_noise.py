"""Signal and noise of judges with known noise, on stored groups of the scripted teacher's attempts."""

import json
import random
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from parts import arena_of, trainer_judge_of
from scripts import CONFIG, sets_of

from arenarl.config.load import load_config
from arenarl.domains.domain import Truth
from arenarl.domains.travel.queries import HELD_OUT
from arenarl.domains.travel.teacher import Teacher
from arenarl.domains.travel.truth import examine
from arenarl.judges.judge import cached_examiner
from arenarl.studies.signal_and_noise import Judged, _properties, _row, main, measure
from arenarl.studies.signal_figures import PROPERTIES, SEEN, SIGNALS, table
from arenarl.system.errors import UserError
from arenarl.training.metrics import group_records, rank_correlation
from arenarl.trajectory import Query, RolloutGroup, Trajectory, append_step, read_jsonl, read_turns, write_jsonl

SIZE = 6
ERRORS = ("sigma_independent", "sigma_call", "sigma_sticky", "position_bias", "length_bias")
EXACT = [*(f"judge.train.{key}=0" for key in ERRORS), "judge.train.rounding=0.001"]
STEPS = (0, 10)
OF_TRAVEL = {"groundedness", "constraints_met"}  # further properties of its truth


@pytest.fixture
def config_of(taught, world, compact, tmp_path, monkeypatch):
    """Return a function that makes a config from overrides, and stores a run's groups.

    One group of each step has an invalid trajectory, another group has only one valid trajectory.
    """
    monkeypatch.chdir(tmp_path)
    queries = [one.query for one in taught[3::25] if one.query.subtask != HELD_OUT]
    write_jsonl(Path("data") / "rl_queries.jsonl", queries)
    teacher, examiner = Teacher(world, compact), cached_examiner(partial(examine, world))
    groups = []
    for query in queries:
        trajectories = [teacher.solve(query, random.Random(g), skill=g / SIZE) for g in range(SIZE)]
        for trajectory in trajectories:
            trajectory.meta["tool_calls"] = sum(len(turn.tool_calls) for turn in read_turns(trajectory.messages))
        groups.append(RolloutGroup(query, trajectories))
    groups[0].trajectories[1].stop_reason = "max_turns"
    for trajectory in groups[-1].trajectories[1:]:
        trajectory.stop_reason = "max_turns"

    def make(*overrides):
        config = load_config(CONFIG, ["data.folder=data", f"rollout.group_size={SIZE}", "rl.groups=2", *overrides])
        outcomes = arena_of(config, trainer_judge_of(config, examine=examiner)).reward_groups(groups)
        for step in STEPS:
            append_step(config.run_dir / "rl" / "groups.jsonl", step, group_records(step, groups, outcomes, examiner))
        return config

    return make


def test_each_step_has_a_row_without_invalid_trajectories(config_of):
    rows = measure(config_of(), repeats=3)
    kept = len(list(read_jsonl(Path("runs/quickstart/rl/groups.jsonl")))) // len(STEPS)
    assert [row["step"] for row in rows] == list(STEPS)
    for row in rows:
        assert row["groups"] == kept - 1
        assert row["trajectories"] == row["groups"] * SIZE - 1
        assert row["failed_calls"] == 0
        assert row["calls"]["mean_of_rounds"] == pytest.approx(3 * row["calls"]["one_round"], abs=1e-3)
        assert set(row["tau"]) == set(SIGNALS)
        assert all(set(taus) == set(PROPERTIES) | OF_TRAVEL for taus in row["tau"].values())
        assert row["tau"]["quality"]["quality"] == 1
    assert rows[0] | {"step": 10} == rows[1]  # the same groups: the same figures
    assert table(rows).count("\n") == 1 + len(rows)


def test_the_tournament_equals_that_of_the_runs_rewards(config_of):
    (row, _) = measure(config_of(), repeats=2)
    taus = []
    for record in read_jsonl(Path("runs/quickstart/rl/groups.jsonl")):
        valid = [index for index, one in enumerate(record["trajectories"]) if one["valid"]]
        if record["step"] == 0 and len(valid) > 1:
            rewards, quality = ([record[key][index] for index in valid] for key in ("rewards", "quality"))
            taus.append(rank_correlation(rewards, quality))
    assert row["tau"]["ranks"]["quality"] == pytest.approx(np.mean(taus), abs=1e-4)


@pytest.mark.parametrize("reward", ["pointwise_answer", "tournament_grpo"])
def test_the_tournament_is_played_whatever_the_runs_reward(config_of, reward):
    assert measure(config_of(), repeats=2) == measure(config_of(f"reward.name={reward}"), repeats=2)


def test_a_judge_without_errors_has_the_true_order_and_one_with_one_score_for_all_none(config_of):
    (row, _) = measure(config_of(*EXACT, "tournament.topology=round_robin"), repeats=2)
    spread = {"sigma_group": pytest.approx(row["sigma_quality"], abs=1e-3), "sigma_noise": 0, "snr": None}
    assert row["trajectory"] == {"groups": row["groups"]} | spread
    for signal in ("ranks", "as_many_calls", "mean_of_rounds", "one_round"):
        assert row["tau"][signal] == row["tau"]["quality"]
    (row, _) = measure(config_of(*EXACT, "judge.train.rounding=100"), repeats=2)
    assert set(row["tau"]["one_round"].values()) <= {0, None} and row["tau"]["ranks"]["quality"] == 0
    assert all(row[seen] == {"groups": row["groups"], "sigma_group": 0, "sigma_noise": 0, "snr": None} for seen in SEEN)


def test_the_noise_of_a_call_is_measured_and_noise_per_trajectory_is_not(config_of):
    configs = (config_of(*EXACT, f"judge.train.sigma_call={sigma}") for sigma in (0.1, 0.2))
    single, double = (measure(config, repeats=4)[0]["trajectory"] for config in configs)
    assert 0 < single["sigma_noise"] < 0.2  # clipping to 0 to 10 reduces the noise
    assert double["sigma_noise"] == pytest.approx(2 * single["sigma_noise"], rel=0.1)
    assert double["snr"] == pytest.approx(single["snr"] / 2, rel=0.1)
    (sticking, _) = measure(config_of(*EXACT, "judge.train.sigma_sticky=1"), repeats=2)
    assert sticking["trajectory"]["sigma_noise"] == 0 and sticking["tau"]["one_round"]["quality"] < 1


def attempt(call, answer):
    """Return a trajectory with one call of this name and an answer."""
    calls = [{"type": "function", "function": {"name": call, "arguments": {}}}]
    messages = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "name": call, "content": "."},
        {"role": "assistant", "content": f"<answer>\n{answer}\n</answer>"},
    ]
    return Trajectory("q", messages, "answer", meta={"tool_calls": 1})


def judged(attempts, whole, answer):
    points = {"trajectory": np.array(whole, dtype=float), "answer": np.array(answer, dtype=float)}
    return Judged(Query("q", "travel", "Search", "en", "?"), attempts, [0.0] * len(attempts), 2, points)


@dataclass
class Known(Truth):
    quality: float

    def dimensions(self):
        return {"answer_relevance": self.quality}

    def figures(self):
        return {}


def test_identical_trajectories_count_once_and_a_group_of_one_does_not_count():
    """The expected values are worked by hand.

    Whole trajectories: rounds (1, 5) and (3, 7), so sigma_group is the root of 8; trajectories (1, 3) and (5, 7), so
    sigma_noise is the root of 2. Answers: x counts once; rounds (2, 4) and (2, 6) of x and y, so sigma_group is the
    root of (2 + 8) / 2.
    """
    one, same, two, other_path = attempt("a", "x"), attempt("a", "x"), attempt("b", "y"), attempt("c", "x")
    groups = [
        judged([one, same, two], [[1, 3], [1, 3], [5, 7]], [[2, 2], [2, 2], [4, 6]]),
        judged([one, same], [[9, 5], [9, 5]], [[9, 5], [9, 5]]),
    ]
    quality = {"a": 4.0, "b": 6.0, "c": 8.0}

    def examine(query, trajectory):
        return Known(quality[trajectory.messages[0]["tool_calls"][0]["function"]["name"]])

    row = _row(groups, examine)
    assert row["trajectory"] == {"groups": 1, "sigma_group": 2.8284, "sigma_noise": 1.4142, "snr": 2.0}
    assert row["answer"] == {"groups": 1, "sigma_group": 2.2361, "sigma_noise": 1.0, "snr": 2.2361}
    assert row["sigma_quality"] == 1.4142 and row["trajectories"] == 5 and row["calls"]["one_round"] == 1.5
    two_paths = judged([one, other_path], [[1, 3], [5, 7]], [[2, 2], [2, 2]])  # two trajectories, one answer
    row = _row([two_paths], lambda query, trajectory: Known(5.0))
    assert row["trajectory"]["snr"] == 2.0
    assert row["answer"] == {"groups": 0, "sigma_group": None, "sigma_noise": None, "snr": None}
    row = _row(groups[1:], lambda query, trajectory: Known(5.0))
    assert row["sigma_quality"] is None and row["trajectory"]["groups"] == 0
    assert "| 0 | 1 | 1.0 | 0 | - | - | - | - |" in table([{"step": 0} | row])


def test_without_stored_groups_or_a_truth_the_error_says_what_to_do(config_of, tmp_path):
    with pytest.raises(UserError, match="run train_rl.py"):
        measure(load_config(CONFIG, ["name=other", "data.folder=data"]))
    query = Query("q7", "travel", "Search", "en", "?")
    message = {"role": "assistant", "content": "<answer>\nx\n</answer>"}
    with pytest.raises(UserError, match="query q7 has no truth"):
        _properties(query, [Trajectory("q7", [message], "answer")], lambda *_: None)


def test_groups_are_found_by_the_data_whatever_the_keys_that_choose_queries(config_of):
    """The keys of training may have changed since; without its data, the run cannot be measured."""
    chosen = ["rl.subtasks=[Search]", "rl.difficulty.filter=true", "rl.groups=1000"]
    assert measure(config_of(*chosen), repeats=2) == measure(config_of(), repeats=2)
    path = Path("data/rl_queries.jsonl")
    first, *others = read_jsonl(path)
    write_jsonl(path, others)
    with pytest.raises(
        UserError, match=f"groups.jsonl: query {first['query_id']} is not in data/rl_queries.jsonl; use"
    ):
        measure(config_of(), repeats=2)


def test_the_study_runs_as_a_command(config_of, tmp_path, monkeypatch, capsys):
    rows = measure(config_of(), repeats=2)
    sets = sets_of({"data.folder": "data", "rollout.group_size": SIZE, "rl.groups": 2})
    monkeypatch.setattr(sys, "argv", ["signal_and_noise", "--config", CONFIG, "--repeats", "2", *sets])
    main()
    found = json.loads((tmp_path / "runs" / "quickstart" / "discrimination.json").read_text())
    assert found["rows"] == rows and found["judge"] == "simulated" and found["repeats"] == 2
    assert table(rows) in capsys.readouterr().out
    assert (tmp_path / "runs" / "quickstart" / "figures" / "discrimination.svg").is_file()
