"""Which checkpoint a run resumes from."""

import json
from types import SimpleNamespace

import pytest

from arenarl.config.schema import Config
from arenarl.run.checkpoints import MARK, Survival, last_checkpoint
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
            Survival(SimpleNamespace(lap=lambda: None)).on_save(SimpleNamespace(output_dir=str(tmp_path)), state, None)

    return make


def test_the_last_complete_checkpoint_counts_and_incomplete_ones_are_deleted(save, tmp_path):
    assert last_checkpoint(tmp_path / "nowhere") is None and last_checkpoint(tmp_path) is None
    for step in (5, 20, 100):
        save(step, processes=1)
    save(200)
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100") and not (tmp_path / "checkpoint-200").exists()


@pytest.mark.parametrize(
    "name", ["checkpoint-20-backup", "checkpoint-best", "checkpoint-", "my-checkpoint-30", "checkpoint-20.old"]
)
def test_other_folders_are_left_alone(save, tmp_path, name):
    save(10, processes=1)
    (tmp_path / name).mkdir()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10") and (tmp_path / name).is_dir()


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


def test_a_marker_of_earlier_code_fits_any_number_of_processes(save, tmp_path):
    save(10, processes=2)
    (tmp_path / "checkpoint-10" / MARK).write_text(json.dumps({"step": 10}))
    assert last_checkpoint(tmp_path, "each step's rows") == str(tmp_path / "checkpoint-10")


def test_two_complete_checkpoints_and_the_users_own_folders_are_kept(save, tmp_path):
    for name in ("checkpoint-5-keep", "checkpoint-best"):
        (tmp_path / name).mkdir()
    for step in (5, 20, 100):
        save(step, processes=1)
    save(120)  # incomplete
    save(140, processes=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-100", "checkpoint-120", "checkpoint-140", "checkpoint-5-keep", "checkpoint-best",
    ]  # fmt: skip
    # transformers' rotation deletes any checkpoint-… folder, and earlier
    assert common_arguments(Config(), tmp_path, True).get("save_total_limit") is None
