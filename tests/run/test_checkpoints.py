"""Which checkpoint a run goes on from."""

import json
from types import SimpleNamespace

import pytest

from arenarl.config.schema import Config
from arenarl.run.checkpoints import MARK, Survival, last_checkpoint
from arenarl.run.trainer_arguments import common_arguments
from arenarl.system.errors import UserError


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Makes checkpoint-<step> in the run's folder, whole if a number of processes saves it to the end."""

    def make(step, processes=None):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if processes:
            monkeypatch.setenv("WORLD_SIZE", str(processes))
            state = SimpleNamespace(is_world_process_zero=True, global_step=step)
            Survival(SimpleNamespace(lap=lambda: None)).on_save(SimpleNamespace(output_dir=str(tmp_path)), state, None)

    return make


def test_the_last_whole_one_counts_and_one_that_is_not_is_removed(save, tmp_path):
    assert last_checkpoint(tmp_path / "nowhere") is None and last_checkpoint(tmp_path) is None
    for step in (5, 20, 100):
        save(step, processes=1)
    save(200)
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100") and not (tmp_path / "checkpoint-200").exists()


@pytest.mark.parametrize(
    "name", ["checkpoint-20-backup", "checkpoint-best", "checkpoint-", "my-checkpoint-30", "checkpoint-20.old"]
)
def test_what_else_lies_there_is_left_alone(save, tmp_path, name):
    save(10, processes=1)
    (tmp_path / name).mkdir()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10") and (tmp_path / name).is_dir()


def test_other_processes_do_not_go_on_where_each_has_a_batch_of_its_own(save, tmp_path, monkeypatch):
    save(10, processes=2)
    assert last_checkpoint(tmp_path, "each step's rows") == str(tmp_path / "checkpoint-10")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(
        UserError, match="checkpoint-10 was begun with 2 processes, .* start as many, or delete .* to begin anew"
    ):
        last_checkpoint(tmp_path, "each step's rows")
    # RL's batches are those of all processes together
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


def test_a_mark_of_earlier_code_goes_with_any_number_of_processes(save, tmp_path):
    save(10, processes=2)
    (tmp_path / "checkpoint-10" / MARK).write_text(json.dumps({"step": 10}))
    assert last_checkpoint(tmp_path, "each step's rows") == str(tmp_path / "checkpoint-10")


def test_two_whole_ones_are_kept_and_what_is_somebodys_own_stays(save, tmp_path):
    for name in ("checkpoint-5-keep", "checkpoint-best"):
        (tmp_path / name).mkdir()
    for step in (5, 20, 100):
        save(step, processes=1)
    save(120)  # being written by nobody any more
    save(140, processes=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-100", "checkpoint-120", "checkpoint-140", "checkpoint-5-keep", "checkpoint-best",
    ]  # fmt: skip
    # which deletes by any name, before the mark
    assert common_arguments(Config(), tmp_path, True).get("save_total_limit") is None
