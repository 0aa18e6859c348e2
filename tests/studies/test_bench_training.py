"""The step benchmark as a command on a tiny policy, and the options that it refuses. No test depends on speed."""

import json
import sys

import pytest
from scripts import CONFIG as QUICKSTART
from scripts import run_python, sets_of

from arenarl.studies import bench_training as bench
from arenarl.system.errors import UserError

CONFIG = ["--config", QUICKSTART]
SMALL = [
    "--groups", "2", "--group_size", "4", "--pairs", "1", "--tokens", "64", "--turn_tokens", "64", "--delay_s", "0.05",
    "--shape", "tiny",
]  # fmt: skip
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "num_kv_heads": 1}
TINY = sets_of({f"policy.scratch.{key}": size for key, size in SIZES.items()})


@pytest.mark.slow(seconds=24)
def test_the_last_line_is_json_with_both_measurements(tmp_path):
    done = run_python(tmp_path, ["-m", "arenarl.studies.bench_training", *CONFIG, *TINY, *SMALL])
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert (line["backend"], line["device"], line["shape"]) == ("transformers", "cpu", "tiny")
    assert line["step_ratio_to_trl"] == pytest.approx(line["step_s"] / line["trl_step_s"], rel=0.05)
    parts = [line[f"{part}_s"] for part in ("rollout", "forward", "judge", "update")]
    assert line["step_s"] == pytest.approx(sum(parts), abs=1e-3)
    assert line["tokens_per_s"] == pytest.approx(2 * 4 * 64 / line["rollout_s"], rel=0.05)
    assert line["peak_memory_gb"] > 0.1
    assert line["ms_per_token"] == pytest.approx(line["rollout_s"] / 64 * 1e3, rel=0.05)
    assert 0 < line["planned_memory_gb"] < line["peak_memory_gb"]
    steps = [text.split(":")[1].split()[0] for text in done.stdout.splitlines() if text.startswith("  pair")]
    assert steps == ["our", "TRL", "TRL", "our"]  # which goes first alternates
    assert 0 <= line["judge_hidden_possible"] <= 1 and "judge_hidden_share" in line
    assert line["rows"] == [{name: value for name, value in line.items() if name != "rows"}]
    assert list(tmp_path.iterdir()) == []


def test_options_that_cannot_work_are_refused_before_any_work(monkeypatch, capsys):
    for option, value, least in (("--group_size", "2", 3), ("--layers", "0", 1)):
        monkeypatch.setattr(sys, "argv", ["bench", *CONFIG, option, value])
        with pytest.raises(SystemExit):
            bench.main()
        assert f"argument {option}: {value}: must be at least {least}" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["bench", *CONFIG, "--set", "rollout.backend=vllm"])
    with pytest.raises(UserError, match="^rollout.backend=vllm: the benchmark"):
        bench.main()
