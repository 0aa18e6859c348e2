"""SFT that stops at a share of valid trajectories, by the real script."""

import pytest
import tracked
from scripts import read, run_well, weights, zero_3


@pytest.mark.slow(seconds=18)
def test_all_processes_stop_at_the_first_check_that_reaches_the_share_without_a_checkpoint(tmp_path):
    run_well(tmp_path, "data/prepare.py", "travel")
    options = {"sft__epochs": 0.16, "sft__save_steps": 2, "sft__deepspeed": zero_3(tmp_path)}  # four optimizer steps
    environment = {"WANDB_MODE": "offline"}
    run_well(tmp_path, "train_sft.py", processes=2, extra_environment=environment, sft__stop_at_valid=0.0, **options)
    stopped = tmp_path / "runs" / "tiny" / "sft"
    assert weights(stopped) and not list(stopped.glob("checkpoint-*"))
    steps = tracked.merged(tracked.starts(stopped.parent, read(stopped / "wandb.json")["id"]))
    assert [step for step, metrics in steps.items() if "train/valid_rate" in metrics] == [max(steps)] == [2]
