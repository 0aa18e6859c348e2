"""A real trainer with W&B offline, in a process that is killed and started again."""

import os
import subprocess
import sys
import time
from dataclasses import asdict

import pytest
import tracked
from scripts import ENVIRONMENT, kill_all, read

from arenarl.config.schema import Config, WandbConfig
from arenarl.run.tracking import mode, start_tracking
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError

STAGE = """
import sys
import time
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from arenarl.config.schema import Config, WandbConfig
from arenarl.run.checkpoints import CheckpointMarker, TrainingBar, last_checkpoint
from arenarl.run.timing import Stopwatch
from arenarl.run.tracking import log, log_summary, log_table, reporters, start_tracking


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, labels):
        return {"loss": ((self.weight * x - labels) ** 2).mean()}


class Start(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        log({"start": int(sys.argv[1])}, state.global_step)
        log_table("rollouts", ["start"], [[sys.argv[1]]], state.global_step)

    def on_save(self, args, state, control, **kwargs):
        if sys.argv[2:] == [str(state.global_step)]:
            Path("saved").touch()
            time.sleep(60)


config = Config(wandb=WandbConfig(mode="offline"), seed=7)
folder = config.run_dir / "rl"
folder.mkdir(parents=True, exist_ok=True)
start_tracking(config, folder)
arguments = TrainingArguments(
    str(folder), max_steps=6, logging_steps=1, save_steps=2, seed=7, report_to=reporters(config.wandb), disable_tqdm=True, use_cpu=True
)
data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 64
trainer = Trainer(Line(), arguments, train_dataset=data, callbacks=[CheckpointMarker(Stopwatch(folder)), Start()])
TrainingBar("rl").attach(trainer)
trainer.train(resume_from_checkpoint=last_checkpoint(folder))
log_summary({"rl": {"greedy": {"win_rate": {"mean": 61.5, "ci": [60.0, 63.0]}, "quality": {"mean": None}}}})
"""  # noqa: E501

DISABLED = """
import sys
from pathlib import Path

import arenarl.evaluation.evaluation
from arenarl.config.schema import Config
from arenarl.run.tracking import log, log_summary, log_table, reporters, start_tracking, wait_until_written

start_tracking(Config(), Path("rl"))
log({"a": 1.0}, 1)
log_table("b", ["c"], [[1]], 1)
log_summary({"d": 1.0})
wait_until_written()
assert "wandb" not in sys.modules and reporters(Config().wandb) == [] and not any(Path().iterdir())
"""


def start(folder, program, *words):
    environment = os.environ | ENVIRONMENT
    return subprocess.Popen(
        [sys.executable, "-c", program, *words], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )


def end(process):
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


@pytest.mark.slow(seconds=30)
def test_a_killed_stage_continues_its_wandb_run_without_a_missing_step(tmp_path):
    """A kill right after a checkpoint loses no earlier step; later steps are replaced on resuming."""
    killed, run_dir = start(tmp_path, STAGE, "1", "4"), tmp_path / "runs" / "run-seed7"
    while not (tmp_path / "saved").exists():
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.001)
    assert kill_all(killed) > 1  # with W&B's own processes
    (run_dir / "rl" / "checkpoint-4" / "whole.json").unlink(missing_ok=True)  # as if killed while saving
    end(start(tmp_path, STAGE, "2"))

    run_id = read(run_dir / "rl" / "wandb.json")["id"]
    starts = tracked.starts(run_dir, run_id)
    assert len(starts) == len(list(run_dir.glob("wandb/offline-run-*"))) == 2
    assert [list(tracked.merged([records])) for records in starts] == [[1, 2, 3, 4], [3, 4, 5, 6]]
    steps = tracked.merged(starts)
    assert [(step, item["start"]) for step, item in steps.items()] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)]
    assert all(item["train/loss"] > 0 for item in steps.values()) and all(
        "rollouts._type" in item for item in steps.values()
    )

    for records in starts:
        begun = tracked.begun(records)
        names = {"run_id": run_id, "run_group": "run-seed7", "job_type": "rl", "display_name": "run-seed7-rl"}
        assert begun["resume"] and begun.items() >= (names | {"project": "arenarl"}).items()
        config = tracked.config(records)
        assert config["max_steps"] == 6  # from the trainer's arguments
        resolved = asdict(Config(wandb=WandbConfig(mode="offline"), seed=7))
        assert {key: config[key] for key in resolved} == resolved
    assert tracked.summary(starts[1])["rl"] == {
        "greedy": {"win_rate": {"mean": 61.5, "ci": [60, 63]}, "quality": {"mean": None}}
    }


def test_disabled_wandb_is_neither_imported_nor_written(tmp_path):
    end(start(tmp_path, DISABLED))


@pytest.mark.parametrize(("variables", "key", "wanted"), [
    ({}, "auto", "offline"), ({}, "online", "online"),  # a run never asks for a login
    ({"WANDB_MODE": "disabled"}, "auto", "disabled"), ({"WANDB_MODE": "disabled"}, "offline", "offline"),
    ({"WANDB_MODE": "Offline"}, "auto", "offline"), ({"WANDB_MODE": "dryrun"}, "auto", "offline"),
    ({"WANDB_MODE": "offlin"}, "auto", "WANDB_MODE=offlin: .*did you mean offline?"),
    ({"WANDB_MODE": "off line"}, "online", "WANDB_MODE=off line: "), ({"WANDB_MODE": "no"}, "disabled", "disabled"),
    ({"WANDB_DISABLED": "true"}, "auto", "disabled"), ({"WANDB_DISABLED": "1"}, "online", "disabled"),
    ({"WANDB_DISABLED": "false", "WANDB_MODE": "online"}, "auto", "online"),
    ({"WANDB_DISABLED": "ture"}, "auto", "WANDB_DISABLED=ture: .*did you mean true?"),
])  # fmt: skip
def test_variables_of_wandb_are_followed_and_a_misspelt_value_is_refused(tmp_path, monkeypatch, variables, key, wanted):
    for name in ("WANDB_MODE", "WANDB_DISABLED", "WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (variables | {"HOME": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    if "=" in wanted:
        with pytest.raises(UserError, match=wanted.replace("?", r"\?")):
            mode(WandbConfig(mode=key))
    else:
        assert mode(WandbConfig(mode=key)) == wanted
    if not variables:
        (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
        assert mode(WandbConfig(mode=key)) == "online"


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize(("variable", "run_id", "message"), [
    ("WANDB_BASE_URL", "a", r"W&B cannot start: .*; correct the environment variable WANDB_… that the error names"),
    ("WANDB_NOTEBOOK_NAME", "a/b", r"wandb.json is damaged .*; restore it, or delete it: the stage then continues"),
])  # fmt: skip
def test_settings_and_ids_that_wandb_refuses_end_in_one_line(tmp_path, monkeypatch, variable, run_id, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "no address")
    monkeypatch.setenv("WANDB_MODE", "offline")  # start_tracking sets it too, and here it is undone
    write_json(tmp_path / "wandb.json", {"id": run_id})
    with pytest.raises(UserError, match=message):
        start_tracking(Config(wandb=WandbConfig(mode="offline")), tmp_path)


UNREACHABLE = """
import sys
from pathlib import Path
import wandb
from arenarl.config.schema import Config, WandbConfig
from arenarl.run.tracking import log, start_tracking

config = Config(wandb=WandbConfig(mode="online"))
(config.run_dir / "rl").mkdir(parents=True)
start_tracking(config, config.run_dir / "rl")
log({"a": 1.0}, 1)
assert wandb.run.settings.mode == "offline"
"""


@pytest.mark.slow(seconds=8)
def test_without_a_connection_to_wandb_a_stage_is_logged_offline_and_writes_no_home(tmp_path):
    variables = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "HOME": str(tmp_path / "home")}
    variables |= {"WANDB_INIT_TIMEOUT": "2", "WANDB_MODE": "online"}
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", UNREACHABLE], cwd=tmp_path, env=os.environ | ENVIRONMENT | variables,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "this stage is logged offline" in done.stdout and "0" * 40 not in done.stdout
    assert list(tmp_path.glob("runs/run/wandb/offline-run-*")) and not any((tmp_path / "home").iterdir())


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize("place", ["", "logs", "/proc/unwritable"])
def test_blank_variables_are_unset_and_a_log_in_another_place_is_named(tmp_path, place):
    """Container files pass variables on that nobody has set."""
    names = "API_KEY BASE_URL CACHE_DIR ENTITY INIT_TIMEOUT NAME PROJECT RESUME RUN_GROUP RUN_ID SILENT TAGS".split()
    variables = {f"WANDB_{name}": " " for name in names} | {"WANDB_MODE": "Offline", "WANDB_DIR": place}
    variables |= {"TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    program = UNREACHABLE.replace('mode="online"', 'mode="auto"')
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=os.environ | ENVIRONMENT | variables, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.rglob("offline-run-*")
    expected = {"": tmp_path / "runs" / "run", "logs": tmp_path / "logs"}.get(place, tmp_path / "temporary")
    assert log.parent == expected / "wandb"
    line = f"W&B: {place} is not writable; the log of this stage is in {log}/files\n"
    assert done.stdout.replace("[INFO] Running in WANDB offline mode\n", "") == (line if place[:1] == "/" else "")
