"""The checkpoint from which a run resumes."""

import json
from types import SimpleNamespace

import pytest

from arenarl.config.schema import Config
from arenarl.run.checkpoints import MARK, CheckpointMarker, last_checkpoint
from arenarl.run.trainer_arguments import common_arguments
from arenarl.system.errors import UserError


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Return `make(step, processes)`, which makes a checkpoint, complete if the number of processes is given."""

    def make(step, processes=None):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if processes:
            monkeypatch.setenv("WORLD_SIZE", str(processes))
            state = SimpleNamespace(is_world_process_zero=True, global_step=step)
            CheckpointMarker(SimpleNamespace(lap=lambda: None)).on_save(
                SimpleNamespace(output_dir=str(tmp_path)), state, None
            )

    return make


def test_the_last_complete_checkpoint_counts_and_incomplete_ones_are_deleted(save, tmp_path):
    assert last_checkpoint(tmp_path / "nowhere") is None and last_checkpoint(tmp_path) is None
    for step in (5, 20, 100):
        save(step, processes=1)
    save(200)
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100") and not (tmp_path / "checkpoint-200").exists()


def test_another_number_of_processes_is_refused_if_they_share_rows(save, tmp_path, monkeypatch):
    save(10, processes=2)
    assert last_checkpoint(tmp_path, "each step's rows") == str(tmp_path / "checkpoint-10")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(
        UserError,
        match="checkpoint-10 was written by 2 processes, .* the same number of processes, or delete .* to restart",
    ):
        last_checkpoint(tmp_path, "each step's rows")
    # RL's batches belong to all processes together
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
    (tmp_path / "checkpoint-10" / MARK).write_text(json.dumps({"step": 10}))  # as an earlier version wrote it
    assert last_checkpoint(tmp_path, "each step's rows") == str(tmp_path / "checkpoint-10")


def test_two_complete_checkpoints_and_the_users_own_folders_are_kept(save, tmp_path):
    others = ["checkpoint-", "checkpoint-20.old", "checkpoint-5-keep", "checkpoint-best", "my-checkpoint-30"]
    for name in others:
        (tmp_path / name).mkdir()
    for step in (5, 20, 100):
        save(step, processes=1)
    save(120)  # incomplete
    save(140, processes=1)
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-140")
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"checkpoint-100", "checkpoint-140", *others}  # resuming deletes the incomplete checkpoint-120
    # transformers' rotation deletes any checkpoint-… folder, and earlier
    assert common_arguments(Config(), tmp_path, True).get("save_total_limit") is None
