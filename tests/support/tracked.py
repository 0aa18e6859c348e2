"""Read W&B's offline folders: every start of a stage wrote one."""

import json
import subprocess
import sys
from pathlib import Path


def starts(folder, run_id):
    """Return the records of each start of a W&B run, earliest first."""
    logs = sorted(Path(folder).glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"))
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json"]
    outputs = [subprocess.run([*command, str(log)], capture_output=True, text=True, check=True).stdout for log in logs]
    return [[json.loads(line) for line in output.splitlines()] for output in outputs]


def begun(records):
    """Return the W&B run of a start: id, group, job type, config."""
    return next(record["run"] for record in records if record["type"] == "run")


def config(records):
    """Return the W&B run's config after all updates."""
    whole = dict(begun(records)["config"]["update"])
    for record in records:
        if record["type"] == "config":
            whole |= record["config"].get("update", {})
    return whole


def merged(many):
    """Return the logs of all starts by optimizer step; a later record replaces an earlier one."""
    steps = {}
    for records in many:
        for record in records:
            if record["type"] == "history" and "train/global_step" in record["history"]["item"]:
                item = record["history"]["item"]
                steps.setdefault(item["train/global_step"], {}).update(item)
    return dict(sorted(steps.items()))


def summary(records):
    """Return the W&B run's summary after a start."""
    whole = {}
    for record in records:
        if record["type"] == "summary":
            whole |= record["summary"]["update"]
    return whole
