"""The client benchmark as a command. No test depends on speed."""

import json
import sys

import pytest

from arenarl.studies import bench_client as bench


@pytest.mark.slow(seconds=6)
def test_the_last_line_is_json_with_both_ratios(monkeypatch, capsys, place):
    small = "--calls 40 --rounds 1 --concurrency 8 256 --delay_s 0.01 --prompt_chars 100 --store"
    monkeypatch.setattr(sys, "argv", ["bench", *small.split(), place])
    bench.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(result["store_ms"][name] > 0 for name in ("sqlite", "given"))
    few, many = result["rows"]
    assert few["concurrency"] == 8 and few["calls"] == 40 and "goal_met" not in few
    assert isinstance(many["goal_met"], bool)
    for row in (few, many):
        assert row["cpu_ratio"] == pytest.approx(row["client_cpu_ms"] / row["plain_cpu_ms"], rel=0.02)
        assert row["wall_ratio"] == pytest.approx(row["plain_calls_per_s"] / row["client_calls_per_s"], rel=0.02)
