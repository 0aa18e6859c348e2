"""Reads what W&B left on the disk offline: every start of a stage wrote a folder of its own."""

import json
import subprocess
import sys
from pathlib import Path


def starts(folder, run_id):
    """The records of each start of a W&B run, the earliest first."""
    logs = sorted(Path(folder).glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"))
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json"]
    outputs = [subprocess.run([*command, str(log)], capture_output=True, text=True, check=True).stdout for log in logs]
    return [[json.loads(line) for line in output.splitlines()] for output in outputs]


def begun(records):
    """What a start said of its W&B run: id, group, job type, config."""
    return next(record["run"] for record in records if record["type"] == "run")


def config(records):
    """The W&B run's config after all that was added to it."""
    whole = dict(begun(records)["config"]["update"])
    for record in records:
        if record["type"] == "config":
            whole |= record["config"].get("update", {})
    return whole


def merged(many):
    """Optimizer step -> what was logged of it over all starts; the later record wins."""
    steps = {}
    for records in many:
        for record in records:
            if record["type"] == "history" and "train/global_step" in record["history"]["item"]:
                item = record["history"]["item"]
                steps.setdefault(item["train/global_step"], {}).update(item)
    return dict(sorted(steps.items()))


def summary(records):
    """What a start left in the W&B run's summary."""
    whole = {}
    for record in records:
        if record["type"] == "summary":
            whole |= record["summary"]["update"]
    return whole
