"""SFT that ends once a share of trajectories is valid, by the real script."""

import pytest
from scripts import differ, run_well, weights, zero_3

STEPS = {"sft__epochs": 0.16, "sft__save_steps": 2}  # four optimizer steps, tried after two and four


@pytest.fixture(scope="module")
def stopping(tmp_path_factory):
    """Trains with what `stop_at_valid` is given, and returns the policy's folder."""
    folder = tmp_path_factory.mktemp("sft_stop")
    run_well(folder, "data/prepare.py", "travel")

    def train(name, stop_at_valid, processes=None, deepspeed=None):
        keys = STEPS | {
            "name": name,
            "sft__stop_at_valid": stop_at_valid,
            "sft__deepspeed": deepspeed and zero_3(folder),
        }
        run_well(folder, "train_sft.py", processes=processes, **keys)
        return folder / "runs" / name / "sft"

    return train


@pytest.fixture(scope="module")
def whole(stopping):
    return stopping("whole", None)


@pytest.mark.slow(seconds=14)
def test_it_ends_at_the_first_try_that_reaches_the_share_without_a_checkpoint(stopping, whole):
    stopped = stopping("stopped", 0.0)
    assert differ(weights(stopped), weights(whole / "checkpoint-2")) == []
    assert not list(stopped.glob("checkpoint-*"))


@pytest.mark.slow(seconds=22)
def test_all_processes_end_together_under_zero_3(stopping):
    stopped = stopping("two", 0.0, processes=2, deepspeed=True)
    assert weights(stopped) and not list(stopped.glob("checkpoint-*"))
