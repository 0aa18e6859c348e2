"""The benchmark of one step ahead as a command on a tiny policy. No test depends on speed."""

import asyncio
import json

import pytest
from scripts import CONFIG, run_python

from arenarl.rollout.generation import GeneratedTurn, TurnRequest
from arenarl.studies.bench_ahead import Period, by_seed, figures

SMALL = [
    "--groups", "1", "--group_size", "3", "--steps", "3", "--turn_tokens", "64", "--tool_s", "0.05",
    "--judge_s", "0.05",
]  # fmt: skip


def test_the_ratio_compares_a_step_with_the_longer_part_in_turn():
    in_turn = [Period(10.0, 6.0, 3.0, 1.0), Period(12.0, 8.0, 3.0, 1.0), Period(11.0, 7.0, 3.0, 1.0)]
    ahead = [Period(8.5, 7.5, 4.0, 0.5), Period(8.2, 7.7, 4.0, 0.5)]
    result = figures(in_turn, ahead)
    assert result["step_s"] == pytest.approx(8.35) and result["share_of_in_turn"] == pytest.approx(8.35 / 11)
    assert result["ratio"] == pytest.approx(7.85 / 7) and not result["goal_met"]
    assert result["ratio_same_steps"] == pytest.approx((8 / 7.5 + 7.7 / 7.7) / 2)


def test_a_turn_s_tokens_depend_on_its_seed_and_length_but_not_on_the_policy():
    def turn(token_ids, seed):
        async def generate(_):
            return GeneratedTurn(token_ids)

        return asyncio.run(by_seed(generate, 700)(TurnRequest([1], 99, 0.8, seed))).token_ids

    assert turn([1] * 50, 3) == turn([2] * 50, 3) != turn([1] * 50, 4) and len(turn([1] * 9, 3)) == 9


@pytest.mark.slow(seconds=40)
def test_the_last_line_is_json_of_both_kinds_of_steps(tmp_path):
    done = run_python(tmp_path, ["-m", "arenarl.studies.bench_ahead", "--config", CONFIG, *SMALL])
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    least = max(line["generation_s"], line["update_s"])
    assert line["ratio"] > 0 and least > 0.1 and line["goal_met"] == (line["ratio"] <= 1.05)
    assert list(tmp_path.iterdir()) == []
