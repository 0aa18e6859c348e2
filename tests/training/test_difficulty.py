"""Pass rates of a real, random policy: found once, gone on with after a kill, and found anew for another policy."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from parts import training_queries_of

from arenarl.config.load import load_config
from arenarl.rollout.engine import RolloutEngine
from arenarl.system.errors import UserError
from arenarl.training import difficulty
from arenarl.training.queries import refuse_other_pass_rates
from arenarl.trajectory import Query, Trajectory, read_jsonl, write_jsonl

ROOT = Path(__file__).resolve().parents[2]
RESEARCH = ROOT / "configs/research/quickstart.yaml"
KNOWN = {"answer": "x", "answer_aliases": [], "entities": []}


@pytest.fixture
def config(policy_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    queries = [Query(f"q{index}", "research", "synthetic_qa", "en", f"Question {index}?", KNOWN) for index in range(6)]
    write_jsonl(
        tmp_path / "data" / "rl_queries.jsonl",
        [*queries, Query("o", "research", "Report", "en", "Write.", {"facts": []})],
    )
    return load_config(RESEARCH, overrides_of(policy_path))


def overrides_of(policy_path):
    keys = "data.folder=data environment.search.corpus_size=100 rollout.max_tokens=64 rl.groups=2"
    return [f"rl.init={policy_path}", *keys.split()]


@pytest.fixture
def rolled_out(monkeypatch):
    """Trajectories without a policy: question i is answered correctly by the first i samples.
    Lists the questions asked."""
    asked = []

    def roll_out(self, attempts, *tick):
        seen = {}
        for attempt in attempts:
            sample = seen[attempt.query.query_id] = seen.get(attempt.query.query_id, -1) + 1
            asked.append(attempt.query.query_id)
            text = "x" if sample < int(attempt.query.query_id[1:]) else "y"
            yield Trajectory(
                attempt.query.query_id, [{"role": "assistant", "content": f"<answer>\n{text}\n</answer>"}], "answer"
            )

    monkeypatch.setattr(RolloutEngine, "roll_out", lambda *arguments: list(roll_out(*arguments)))
    return asked


def test_queries_that_are_answered_at_times_are_what_rl_trains_on(config, rolled_out, capsys):
    difficulty.measure(config)
    assert (
        len(rolled_out) == 6 * 4
        and "3 of 6 queries with a known answer are kept; 1 were never answered, 2 always" in capsys.readouterr().out
    )
    config.rl.difficulty.filter = True
    assert [query.query_id for query in training_queries_of(config)] == ["q1", "q2", "q3", "o"]


def test_rl_does_not_choose_queries_by_the_pass_rates_of_other_weights(config, rolled_out, policy_path, tmp_path):
    difficulty.measure(config)
    refuse_other_pass_rates(config.rl, config.pass_rates, policy_path)
    refuse_other_pass_rates(config.rl, tmp_path / "by_hand" / "pass_rates.jsonl", policy_path)
    with pytest.raises(
        UserError, match="is of other weights than elsewhere has; python -m arenarl.training.difficulty finds its own"
    ):
        refuse_other_pass_rates(config.rl, config.pass_rates, "elsewhere")
    config.rl.difficulty.filter = False
    refuse_other_pass_rates(config.rl, config.pass_rates, "elsewhere")  # nothing is chosen


def test_it_goes_on_where_it_was_killed_and_starts_anew_with_other_settings(config, rolled_out, monkeypatch):
    monkeypatch.setattr(difficulty, "BATCH", 2)
    difficulty.measure(config)
    path = config.pass_rates
    whole = path.read_bytes()
    write_jsonl(path, list(read_jsonl(path))[:4])
    rolled_out.clear()
    difficulty.measure(config)
    assert set(rolled_out) == {"q4", "q5"} and path.read_bytes() == whole
    rolled_out.clear()
    difficulty.measure(config)
    assert not rolled_out
    config.rollout = replace(config.rollout, temperature=0.5)
    difficulty.measure(config)
    assert len(set(rolled_out)) == 6


def test_another_verifier_or_another_precision_finds_them_anew_and_another_price_does_not(config, rolled_out):
    difficulty.measure(config)
    for change, is_anew in (
        (lambda: setattr(config.policy, "dtype", "bfloat16"), True),
        (lambda: setattr(config.judge.verifier, "price_in", 2.0), False),
        (lambda: setattr(config.judge.verifier, "temperature", 0.5), True),
    ):
        rolled_out.clear()
        change()
        difficulty.measure(config)
        assert bool(rolled_out) is is_anew


@pytest.mark.slow(seconds=16)
def test_a_real_policy_has_pass_rates_the_same_on_one_process_and_on_two(config, policy_path):
    difficulty.measure(config)
    records = list(read_jsonl(config.pass_rates))
    assert [record["query_id"] for record in records] == [f"q{index}" for index in range(6)] and all(
        record["pass_rate"] == 0 for record in records
    )
    one = config.pass_rates.read_bytes()
    config.pass_rates.unlink()
    sets = [word for override in overrides_of(policy_path) for word in ("--set", override)]
    words = "-m arenarl.run.launch --nproc_per_node 2 -m arenarl.training.difficulty --config"
    command = [sys.executable, *words.split(), str(RESEARCH), *sets]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300, check=False
    )
    assert (
        done.returncode == 0 and done.stdout.count("0 of 6 queries") == 1 and config.pass_rates.read_bytes() == one
    ), done.stderr
    assert json.loads((config.pass_rates.parent / "settings.json").read_text())["samples"] == 4
