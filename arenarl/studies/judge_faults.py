"""RL with a judge server that fails in every known way, compared with a run without faults, and then repeated.

    python -m arenarl.studies.judge_faults --config configs/quickstart.yaml

The last line is JSON. `fault_share` is the faulty share of the server's replies. `invented_scores` counts verdicts that
the run used and the server never gave. `failed_verdicts` counts missing verdicts. `throughput_ratio` is seconds with
faults divided by seconds without. `calls_on_rerun` counts the paid calls and retries of training in the repeated run.
Needs the run's data and SFT policy.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from arenarl.config.command_line import as_overrides, command_line, in_range, parse_arguments
from arenarl.config.load import load_config
from arenarl.judges.local_server import free_port, running_server
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import UserError, owned, run_cli
from arenarl.system.repository import ROOT
from arenarl.trajectory import read_jsonl

FOLDER = Path("runs") / "judge-faults"
JUDGE = ROOT / "configs" / "judges" / "local_server.yaml"


def train(config: str, name: str, init_run: str, steps: int, port: int, overrides: list[str]) -> tuple[float, list]:
    """Train from scratch with the LLM judge. Return the seconds and TRL's log of every step."""
    run = load_config(config, [*overrides, f"name={name}"])
    shutil.rmtree(run.run_dir, ignore_errors=True)
    keys = {
        "name": name, "rl.init_run": init_run, "rl.steps": steps, "rl.save_steps": steps, "rl.eval_steps": 0,
        "wandb.mode": "offline", "judge.train.base": str(JUDGE), "judge.train.base_url": f"http://127.0.0.1:{port}/v1",
        "judge.train.timeout_s": 0.5, "judge.concurrency": 16, "judge.store": str(FOLDER / f"{name}.sqlite"),
    }  # fmt: skip
    words = command_line(config, [*overrides, *as_overrides(keys)])
    environment = os.environ | owned()  # the script ends when this process is killed
    done = subprocess.run([sys.executable, str(ROOT / "train_rl.py"), *words], env=environment, check=False)
    if done.returncode:
        raise UserError(f"training {name} ended with exit code {done.returncode}; its error is printed above")
    folder = run.run_dir / "rl"
    state = read_json(folder / f"checkpoint-{steps}" / "trainer_state.json")
    return read_json(folder / "timing.json")["seconds"], state["log_history"]


def invented_scores(used: list[dict[str, Any]], served: list[dict[str, Any]]) -> int:
    """Count the used verdicts that the server did not give to the same prompt."""
    given = {(line["messages"], json.dumps(line["reply"], sort_keys=True)) for line in served if line["reply"]}
    return sum((line["messages"], json.dumps(line["reply"], sort_keys=True)) not in given for line in used)


def main() -> None:
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--steps", type=in_range(int, 1), default=20)
        parser.add_argument("--faults", type=in_range(float, 0, 1), default=0.3, help="share of faulty replies")

    config, arguments = parse_arguments(__doc__, add_options)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    port = free_port()  # one for all runs, since replies are stored by address
    init_run = config.rl.init_run or config.name

    def run(name: str, faults: float, log: str) -> tuple[float, list[dict[str, Any]]]:
        """Return the seconds and the trainer's log; the server logs to `log`."""
        options = ("--faults", str(faults), "--log", str(FOLDER / log))
        with running_server(arguments.config, arguments.overrides, port, *options):
            return train(arguments.config, name, init_run, arguments.steps, port, arguments.overrides)

    seconds_without, _ = run("judge-faults-none", 0.0, "none.jsonl")
    seconds, steps = run("judge-faults-some", arguments.faults, "some.jsonl")
    some = load_config(arguments.config, [*arguments.overrides, "name=judge-faults-some"]).run_dir
    used, served = list(read_jsonl(some / "rl" / "verdicts-0.jsonl")), list(read_jsonl(FOLDER / "some.jsonl"))
    _, again = run("judge-faults-some", arguments.faults, "again.jsonl")
    curves = f"curves of both runs in {some}/wandb"
    print(f"{len(used)} verdicts used, {len(served)} requests served; logs in {FOLDER}; {curves}")
    figures = {
        "fault_share": round(sum(line["fault"] is not None for line in served) / len(served), 3),
        "invented_scores": invented_scores(used, served),
        "failed_verdicts": int(sum(step.get("judge/failed_verdicts", 0) for step in steps)),
        "throughput_ratio": round(seconds / seconds_without, 2),
        # without the verdict of the judge check at each start of RL
        "calls_on_rerun": int(
            sum(step[name] for step in again for name in ("judge/paid_calls", "judge/retries") if name in step)
        ),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    run_cli(main)
