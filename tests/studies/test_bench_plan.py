"""The plan beside a measured step: its last line on a CPU, which has seconds and no memory;
what it cannot measure is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from arenarl.studies import bench_plan
from arenarl.system.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ["--config", str(ROOT / "configs" / "quickstart.yaml")]
SMALL = ["rollout.max_tokens=96", "rollout.group_size=4", "rl.micro_batch_size=2", "rl.eval_steps=0", "rl.groups=2"]


@pytest.mark.slow(seconds=24)
@pytest.mark.parametrize("changes", [[], ["policy.lora_rank=4"]])
def test_a_step_of_the_longest_trajectories_is_measured(changes, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1"}
    sets = [word for change in (*SMALL, *changes) for word in ("--set", change)]
    command = [sys.executable, "-m", "arenarl.studies.bench_plan", *CONFIG, *sets]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = json.loads(done.stdout.splitlines()[-1])
    assert (
        line["generating"]["seconds"] > 0
        and line["training"]["seconds"] > 0
        and line["training"]["memory"] == 0 < line["layer_ms"]
    )
    assert "| training |" in done.stdout and "training: 4 trajectories" in done.stdout and "of 96 tokens" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", ["rl.deepspeed=ds_config.json", "rl.method=dpo", "rl.advantage=gae"])
def test_what_one_process_cannot_measure_is_refused(monkeypatch, change):
    monkeypatch.setattr(sys, "argv", ["bench", *CONFIG, "--set", change])
    with pytest.raises(UserError, match=rf"^{change}: .*; set {change.partition('=')[0]}="):
        bench_plan.main()
