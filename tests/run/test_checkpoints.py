"""The checkpoint from which a run resumes."""

import logging
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from arenarl.config.schema import Config
from arenarl.run.checkpoints import CheckpointMarker, TrainingBar, finish_marks, last_checkpoint
from arenarl.run.marks import MARK
from arenarl.run.trainer_arguments import common_arguments
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Return `make(step, processes)`, which makes a checkpoint, complete if the number of processes is given."""

    def make(step, processes=None):
        (tmp_path / f"checkpoint-{step}").mkdir(exist_ok=True)
        if processes:
            monkeypatch.setenv("WORLD_SIZE", str(processes))
            state = SimpleNamespace(is_world_process_zero=True, global_step=step)
            (tmp_path / f"checkpoint-{step}" / "optimizer.pt").write_text(str(step))
            arguments, stopwatch = SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(lap=lambda: None)
            CheckpointMarker(stopwatch).on_save(arguments, state, None)
            finish_marks()

    return make


def test_another_number_of_processes_is_refused_if_they_share_rows(save, tmp_path, monkeypatch):
    save(10, processes=2)
    assert last_checkpoint(tmp_path, "each step's rows") == str(tmp_path / "checkpoint-10")
    monkeypatch.setenv("WORLD_SIZE", "4")
    refused = "checkpoint-10 was written by 2 processes, .* the same number of processes, or delete .* to restart"
    with pytest.raises(UserError, match=refused):
        last_checkpoint(tmp_path, "each step's rows")
    # RL's batches belong to all processes together
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


def test_two_complete_checkpoints_and_the_users_own_folders_are_kept(save, tmp_path):
    assert last_checkpoint(tmp_path / "nowhere") is None and last_checkpoint(tmp_path) is None
    others = ["checkpoint-", "checkpoint-20.old", "checkpoint-5-keep", "checkpoint-best", "my-checkpoint-30"]
    for name in others:
        (tmp_path / name).mkdir()
    for step in (5, 20, 100):
        save(step, processes=1)
    save(120)  # incomplete
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100")  # and deletes the incomplete one
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-20", "checkpoint-100", *others}
    save(140, processes=1)
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-140")
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-100", "checkpoint-140", *others}
    # transformers' rotation deletes any checkpoint-… folder, and earlier
    assert common_arguments(Config(), tmp_path).get("save_total_limit") is None


def test_a_damaged_checkpoint_is_renamed_if_an_older_one_is_sound(save, tmp_path, capsys):
    for step in (5, 20):
        save(step, processes=1)
    (tmp_path / "checkpoint-20" / "optimizer.pt").unlink()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-5")
    line = "checkpoint-20 is damaged: optimizer.pt is missing; renamed it to damaged-checkpoint-20, resuming from"
    assert f"{line} checkpoint-5" in capsys.readouterr().out and (tmp_path / "damaged-checkpoint-20" / MARK).is_file()
    save(20, processes=1)
    (tmp_path / "checkpoint-5" / "optimizer.pt").write_text("6")
    (tmp_path / "checkpoint-20" / MARK).write_text('{"step": 20, "processes": 1}')  # of an earlier version
    found = "checkpoint-20: whole.json is damaged, .* earlier version; checkpoint-5: optimizer.pt was changed"
    with pytest.raises(UserError, match=rf"no undamaged checkpoint \({found}\); restore them, or delete the folder"):
        last_checkpoint(tmp_path)
    assert (tmp_path / "checkpoint-20").is_dir() and (tmp_path / "checkpoint-5").is_dir()
    save(20, processes=1)
    (tmp_path / "checkpoint-20" / "other.pt").write_text("copied there")
    (tmp_path / "checkpoint-5" / "optimizer.pt").write_text("5")
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-5")  # an earlier damaged-checkpoint-20 is replaced


def test_a_checkpoint_of_another_run_or_step_is_not_resumed(save, tmp_path):
    save(5, processes=1)
    (tmp_path / "checkpoint-5").rename(tmp_path / "checkpoint-99")
    with pytest.raises(UserError, match="checkpoint-99: it is the checkpoint of step 5"):
        last_checkpoint(tmp_path)
    (tmp_path / "checkpoint-99").rename(tmp_path / "checkpoint-5")
    write_json(tmp_path / "start.json", {"policy": "another", "weights": "another"})
    with pytest.raises(UserError, match="checkpoint-5: it belongs to another run"):
        last_checkpoint(tmp_path)


def test_a_symbolic_link_neither_stops_saving_nor_loses_its_target(save, tmp_path):
    """A user may have moved a checkpoint to a larger disk."""
    disk = tmp_path / "disk"
    for step in (5, 20):
        save(step, processes=1)
    disk.mkdir()
    (tmp_path / "checkpoint-5").rename(disk / "checkpoint-5")
    (tmp_path / "checkpoint-5").symlink_to(disk / "checkpoint-5")
    (tmp_path / "checkpoint-20").rename(disk / "checkpoint-20")
    (tmp_path / "checkpoint-20").symlink_to(disk / "checkpoint-20")
    (tmp_path / "checkpoint-30").symlink_to(disk / "nowhere")
    (tmp_path / "checkpoint-40").write_text("a file")
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-20")
    save(30, processes=1)
    save(40, processes=1)
    left = {path.name for path in tmp_path.glob("checkpoint-*")}
    assert left == {"checkpoint-30", "checkpoint-40"} and (disk / "checkpoint-20" / "optimizer.pt").is_file()


def test_resuming_warns_of_missing_weights_unless_all_of_them_are_tied():
    model = SimpleNamespace(all_tied_weights_keys={"lm_head.weight": "model.embed_tokens.weight"})
    nothing = SimpleNamespace(model=model, remove_callback=id, add_callback=id)
    TrainingBar("rl").attach(nothing)
    logger, warned = logging.getLogger("transformers.trainer"), logging.Handler()
    warned.emit = Mock()
    logger.addHandler(warned)
    for keys in (["lm_head.weight"], ["lm_head.weight", "model.norm.weight"], ["model.norm.weight"]):
        logger.warning(f"There were missing keys in the checkpoint model loaded: {keys}.")
    logger.removeHandler(warned)
    assert warned.emit.call_count == 2


@pytest.mark.parametrize("name", ["loss", "grad_norm", "train_loss"])
def test_a_loss_or_gradient_that_is_not_finite_ends_training(name):
    arguments, state = SimpleNamespace(output_dir="runs/x/sft", learning_rate=0.5), SimpleNamespace(global_step=7)
    marker = CheckpointMarker(Mock())
    for value in (1.5, None):
        marker.on_log(arguments, state, None, logs={name: value})
    for value in (float("nan"), float("inf")):
        with pytest.raises(UserError, match=rf"sft: {name} is {value} at step 7, .*; lower the learning rate \(0.5\)"):
            marker.on_log(arguments, state, None, logs={name: value})
