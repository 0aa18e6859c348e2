"""How fast this tree is beside another commit: measured in turn, in interleaved pairs,
so that what a machine does meanwhile meets both.

    python -m arenarl.studies.bench_speed --against COMMIT [--measure sft rl_step decode start] [--pairs 5]
        [--policy runs/quickstart/sft]

The other commit is checked out into a temporary folder; both trees work there on the same data, with the same packages.
Each value is that of a subprocess of its own that imports from one tree, which begins a pair in turn. Measurements, in
seconds unless the name says otherwise:

- `sft`: the cold start of the quickstart as each tree's YAML has it, whole, by its timing.json. One pair.
- `rl_step`: a step of train_rl.py, and its parts, on two processes from `--policy`: the median of `--steps` after the
  first two.
- `decode`: `tokens_per_s` that are generated in rollouts with real tool calls (`decode_probe`),
  one process with one thread.
- `start`: until each script has loaded what it needs, and ends for want of more.
- `quickstart`: all stages one after the other, whole. One pair, and only when asked for.

For each it writes all values, both medians and `ratio`, this tree's median by the other's, into results/speed.json,
with both commits, the CPU, the date and the machine's load at the start: one above 0.5 was not idle, and the figures
say little. Rows of other measurements stay.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from arenarl.config.command_line import add_overrides, as_overrides, command_line, keyword_overrides
from arenarl.config.load import load_config
from arenarl.report.provenance import commit, cpu
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.errors import UserError, guarded
from arenarl.system.repository import ROOT, file_named

RESULTS = Path("results") / "speed.json"
SKIPPED = 2  # of the first steps of RL, in which memory is allocated and kernels are chosen
Values = dict[str, float]  # of one tree, once, by name


@dataclass(frozen=True)
class Runner:
    """Starts a tree's scripts in temporary folders, with the keys of the tree's own YAML but for the overrides."""

    config: str  # from the tree's root
    overrides: list[str]
    policy: str
    steps: int

    def run(self, tree: Path, folder: Path, *command: str, may_fail: bool = False, **keys: Any) -> str:
        """What the command printed. Raises UserError with its last line if it failed."""
        words = command_line(str(tree / self.config), [*self.overrides, *keyword_overrides(**keys)])
        environment = os.environ | {"PYTHONPATH": str(tree)}
        done = subprocess.run(
            [sys.executable, *command, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode and not may_fail:
            raise UserError(
                f"{' '.join(command)} failed in {tree}: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}"
            )
        return done.stdout

    def train(self, tree: Path, folder: Path, script: str, **keys: Any) -> None:
        """A script on two processes, as in the quickstart."""
        self.run(tree, folder, "-m", "arenarl.run.launch", "--nproc_per_node", "2", str(tree / script), **keys)


def measure_sft(runner: Runner, tree: Path, folder: Path) -> Values:
    runner.train(tree, folder, "train_sft.py")
    return {"seconds": read_json(folder / "runs" / "speed" / "sft" / "timing.json")["seconds"]}


def measure_rl_step(runner: Runner, tree: Path, folder: Path) -> Values:
    steps = runner.steps + SKIPPED
    runner.train(
        tree, folder, "train_rl.py", rl__init=runner.policy, rl__steps=steps, rl__save_steps=steps, rl__eval_steps=0
    )
    return rl_step(folder / "runs" / "speed" / "rl", steps)


def rl_step(folder: Path, steps: int, skipped: int = SKIPPED) -> Values:
    """Medians of a step of RL and its parts, out of the last checkpoint of a run of so many steps."""
    state = read_json(folder / f"checkpoint-{steps}" / "trainer_state.json")
    names = {"step_s": "step_time"} | {
        f"{part}_s": f"time/{part}_s" for part in ("rollout", "forward", "judge", "update")
    }
    return {
        name: median(step[logged] for step in state["log_history"][skipped:steps]) for name, logged in names.items()
    }


def measure_decode(runner: Runner, tree: Path, folder: Path) -> Values:
    probe = Path(__file__).with_name("decode_probe.py")
    # -P: nothing is imported from beside the probe
    return json.loads(runner.run(tree, folder, "-P", str(probe)).splitlines()[-1])


def measure_start(runner: Runner, tree: Path, folder: Path) -> Values:
    commands = {
        "prepare": (str(tree / "data" / "prepare.py"), "--help"),
        "sft": (str(tree / "train_sft.py"), "--check"),
        "rl": (str(tree / "train_rl.py"), "--check"),
        "evaluate": (str(tree / "evaluate.py"),),
        "report": ("-m", "arenarl.report"),
        "config": ("-m", "arenarl.config"),
        "launch": ("-m", "arenarl.run.launch", "--help"),
    }
    return {
        f"{name}_s": _seconds(lambda words=words: runner.run(tree, folder, *words, may_fail=True))
        for name, words in commands.items()
    }


def measure_quickstart(runner: Runner, tree: Path, folder: Path) -> Values:
    def run() -> None:
        runner.run(tree, folder, str(tree / "data" / "prepare.py"), data__folder=str(folder / "data"))
        for script in ("train_sft.py", "train_rl.py", "evaluate.py"):
            runner.train(tree, folder, script, data__folder=str(folder / "data"))
        runner.run(tree, folder, "-m", "arenarl.report")

    return {"seconds": _seconds(run)}


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


Measure = Callable[[Runner, Path, Path], Values]
MEASURES: dict[str, Measure] = {
    "sft": measure_sft, "rl_step": measure_rl_step, "decode": measure_decode, "start": measure_start,
    "quickstart": measure_quickstart
}  # fmt: skip
LONG = ("sft", "quickstart")  # one pair, unless told


def compare(measure: Measure, runner: Runner, trees: dict[str, Path], pairs: int) -> dict[str, Any]:
    """By quantity: all values of both trees in the order of the pairs, the medians,
    and the first tree's median by the second's."""
    values: dict[str, list[Values]] = {name: [] for name in trees}
    for pair in range(pairs):
        for name in list(trees)[:: -1 if pair % 2 else 1]:
            with tempfile.TemporaryDirectory() as folder:
                values[name].append(measure(runner, trees[name], Path(folder)))
    figures = {}
    for quantity in values["this"][0]:
        series = {name: [round(one[quantity], 4) for one in taken] for name, taken in values.items()}
        medians = {name: median(taken) for name, taken in series.items()}
        ratio = round(medians["this"] / medians["other"], 4) if medians["other"] else None
        figures[quantity] = {"values": series, "median": medians, "ratio": ratio}
    return figures


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """The tree of a commit, for as long as it is needed. Raises UserError if git knows none of this name."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "other"
        done = _git("worktree", "add", "--detach", str(tree), f"{revision}^{{commit}}")
        if done.returncode:
            raise UserError(
                f"--against {revision}: {(done.stderr.strip().splitlines() or ['git failed'])[-1]}; "
                "name a commit of this repository"
            )
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def show(name: str, figures: dict[str, Any]) -> None:
    for quantity, figure in figures.items():
        this, other = figure["median"]["this"], figure["median"]["other"]
        print(f"{name:<11}{quantity:<13}{this:>10.3f} against {other:>10.3f}  ratio {figure['ratio']}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--config", default="configs/quickstart.yaml", help="the run's YAML")
    add_overrides(parser)
    parser.add_argument("--against", required=True, metavar="COMMIT", help="the commit to compare with")
    parser.add_argument(
        "--measure", nargs="+", choices=MEASURES, default=["sft", "rl_step", "decode", "start"], help="what to measure"
    )
    parser.add_argument("--pairs", type=int, help="measurements of each tree (default: 5; 1 for sft and quickstart)")
    parser.add_argument("--steps", type=int, default=10, help="RL steps to time")
    parser.add_argument("--policy", default="runs/quickstart/sft", help="the SFT policy that rl_step starts from")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    config = load_config(arguments.config, arguments.overrides)
    if min(1 if arguments.pairs is None else arguments.pairs, arguments.steps) < 1:
        raise UserError("--pairs and --steps must be at least 1")
    if "rl_step" in arguments.measure and not Path(arguments.policy, "timing.json").is_file():
        raise UserError(
            f"--policy {arguments.policy} is no finished SFT policy; ./reproduce.sh sft writes runs/quickstart/sft"
        )
    data = Path(config.data.folder).resolve()
    if not (data / "manifest.json").is_file():
        raise UserError(f"{data} holds no data; ./reproduce.sh data writes it")
    overrides = [
        *arguments.overrides,
        *as_overrides({"name": "speed", "data.folder": str(data), "wandb.mode": "offline"}),
    ]
    yaml = os.path.relpath(file_named(arguments.config).resolve(), ROOT)
    runner = Runner(yaml, overrides, str(Path(arguments.policy).resolve()), arguments.steps)
    rows = read_json(RESULTS) or {}
    machine = {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "load": os.getloadavg()[0],
    }
    with checked_out(arguments.against) as other:
        origin = {"commit": commit(), "against": commit(other)}
        for name in arguments.measure:
            figures = compare(
                MEASURES[name], runner, {"this": ROOT, "other": other}, arguments.pairs or (1 if name in LONG else 5)
            )
            show(name, figures)
            rows[name] = origin | machine | {"figures": figures}
            write_json(RESULTS, rows)
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    guarded(main)
