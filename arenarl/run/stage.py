"""What every script does around its work: threads and seeds, provenance beside the results, W&B without a login, time spent.

`start_stage` writes what the run was: resolved config, commit, library versions, seed. A stage is done when its timing.json, written
last, and its policy are there: then it is not run again. `runs/` alone decides that, never `results/`.
"""

import fcntl
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import IO, Any

import yaml

from arenarl.config.load import config_to_yaml, load_config
from arenarl.config.schema import Config, JudgeConfig, LLMConfig
from arenarl.system.atomic_files import read_json, write_json, write_text
from arenarl.system.errors import UserError, keep_tracebacks
from arenarl.system.progress import is_main_process, quiet_libraries, say
from arenarl.system.repository import ROOT

_UNREAD_BY = {  # sections that a stage does not read
    "sft": ("name", "results", "rollout", "judge", "tournament", "reward", "rl", "evaluate", "wandb"),
    "rl": ("name", "results", "sft", "evaluate", "wandb"),
}
_CLAIMS: list[IO] = []  # open files whose locks this process holds
_OF_CALLS = {
    "concurrency", "store", "store_only", "max_calls", "max_cost", "max_failure_share", "timeout_s", "patience_s", "api_key_variable",
    "price_in", "price_out",
}  # fmt: skip
_OF_VLLM = {"vllm_memory", "server_url", "server_weights", "parity_steps", "parity_bound"}
_FREE_ON_RESUMING = {  # keys that change no verdict, and the policy by rounding errors only: a run that they stopped goes on with others
    "judge": _OF_CALLS, "environment": _OF_CALLS | {"cache", "indexes", "device"}, "rl": {"micro_batch_size"}, "rollout": _OF_VLLM | {"batch_size"},
    "policy": {"gradient_checkpointing"},
}  # fmt: skip
_LIBRARIES = ("torch", "transformers", "trl", "accelerate", "peft", "deepspeed", "datasets", "openai", "wandb")


def start_stage(config: Config, stage: str) -> Path:
    """Make the stage's folder, fix threads, name the W&B run, write the provenance; returns runs/<run>/<stage>.

    To be called before the first model is built. Only the main process writes.
    """
    fix_randomness(config)
    folder = config.run_dir / stage
    folder.mkdir(parents=True, exist_ok=True)
    keep_tracebacks(folder)
    _refuse_other_settings(config, folder)
    os.environ["WANDB_MODE"] = wandb_mode(config)
    os.environ.setdefault("WANDB_PROJECT", config.wandb.project)
    os.environ.setdefault("WANDB_DIR", str(config.run_dir))
    os.environ["WANDB_NAME"] = f"{config.run_name}-{stage}"
    os.environ.setdefault("WANDB_SILENT", "true")
    if is_main_process() and not _has_finished(folder):
        _claim(folder)
        write_text(folder / "config.yaml", config_to_yaml(config))
        write_json(folder / "provenance.json", provenance(config))
    return folder


def fix_randomness(config: Config) -> None:
    """Threads, algorithms and seeds, so that a run can be repeated; and what libraries say on every run is silenced."""
    import torch
    from transformers import set_seed

    quiet_libraries()
    torch.set_num_threads(config.threads)
    if config.rollout.backend != "vllm":  # which brings kernels into this process that no seed makes repeatable
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # else TRL's half-gigabyte scratch buffer is filled every forward pass
    set_seed(config.seed)


def _claim(folder: Path) -> None:
    """Hold the stage's folder until this process ends, however it ends: two runs would write over each other's checkpoints."""
    lock = (folder / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{folder} is being written by another run; wait until it ends or stop it, or give this run another `name`") from None
    except OSError:
        say(f"{folder} lies on a file system without locks: take care not to start this stage twice at once")
    _CLAIMS.append(lock)


def _refuse_other_settings(config: Config, folder: Path) -> None:
    """A stage that was begun with other settings is neither resumed nor overwritten. A key that did not exist then had its default."""
    unread = set(_UNREAD_BY.get(folder.name, ()))
    earlier = folder / "config.yaml"
    if not unread or not earlier.is_file():
        return
    rolls_out = folder.name == "sft" and config.sft.stop_at_valid is not None  # SFT makes trajectories too, for RL's queries
    if rolls_out:
        unread -= {"rollout", "rl"}
    try:
        before, now = (yaml.safe_load(config_to_yaml(one)) for one in (load_config(earlier), config))
    except UserError as error:
        raise UserError(f"{folder} was begun with settings that cannot be read now ({error}); delete it, or give this run another `name`") from error
    for settings in (before, now):
        settings |= {section: _without(free, settings[section]) for section, free in _FREE_ON_RESUMING.items()}
        if rolls_out:
            settings["rl"] = {key: settings["rl"][key] for key in ("subtasks", "difficulty")}
    changed = [section for section in now if section not in unread and now[section] != before.get(section)]
    if changed:
        raise UserError(f"{folder} was made with other settings ({', '.join(changed)}); delete it, or give this run another `name`")


def _without(keys: set[str], settings: Any) -> Any:
    if isinstance(settings, list):
        return [_without(keys, item) for item in settings]
    if isinstance(settings, dict):
        return {name: _without(keys, value) for name, value in settings.items() if name not in keys}
    return settings


def is_done(folder: Path) -> bool:
    """Whether a training stage has finished before; says so."""
    if _has_finished(folder):
        say(f"{folder} is done already; delete it to run it again")
        return True
    if is_main_process():
        (folder / "timing.json").unlink(missing_ok=True)  # of a policy that is gone
    return False


def _has_finished(folder: Path) -> bool:
    """Its last file is there, and so are the weights."""
    return (folder / "timing.json").is_file() and any(folder.glob("*.safetensors"))


def wandb_mode(config: Config) -> str:
    """`auto` is online where there is a login, offline otherwise: a run never stops to ask."""
    if config.wandb.mode != "auto":
        return config.wandb.mode
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    netrc = Path.home() / ".netrc"
    has_login = bool(os.environ.get("WANDB_API_KEY")) or (netrc.is_file() and "wandb" in netrc.read_text(errors="ignore"))
    return "online" if has_login else "offline"


def commit(tree: Path = ROOT) -> str | None:
    """The tree that runs, `-dirty` if it is not as committed; None outside git. What is in results/ comes out of runs and enters none."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)results")
    return git("describe", "--always") + ("-dirty" if changed else "") or None


def provenance(config: Config) -> dict[str, Any]:
    """Commit, library versions, CPU, seeds and judges: what a result needs to be understood later."""
    return {
        "commit": commit(),
        "versions": {name: version(name) for name in _LIBRARIES} | _vllm_version(config),
        "python": sys.version.split()[0],
        "cpu": _cpu(),
        "seed": config.seed,
        "data_seed": config.data.seed,
        "judge_train": _judge_provenance(config, config.judge.train),
        "judge_eval": [_judge_provenance(config, judge) for judge in config.judge.eval],
        "api_policies": {name: _policy_provenance(config, llm) for name, llm in config.evaluate.api.items()},
        "judge_is_simulated": config.judge.train.is_simulated,
    }


def _cpu() -> str:
    """Its name and the instructions that torch uses: sums are rounded otherwise with others, so a seed gives other figures."""
    import torch

    path = Path("/proc/cpuinfo")
    name = re.search(r"model name\s*: (.*)", path.read_text(encoding="utf-8")) if path.is_file() else None
    return f"{name[1] if name else platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def _vllm_version(config: Config) -> dict[str, str]:
    """Of the package that provides it, if it generates here: with a GPU it has another name than without."""
    names = packages_distributions().get("vllm", []) if config.rollout.backend == "vllm" else []
    return {name: version(name) for name in names}


def _judge_provenance(config: Config, judge: JudgeConfig) -> str | dict[str, Any]:
    """An LLM judge by model, endpoint and prompt, and when: models behind an API change."""
    if judge.name != "llm":
        return judge.name
    from arenarl.domains.domain import make_domain
    from arenarl.domains.rubrics import domain_rubric
    from arenarl.judges.prompts import prompt_hash

    rubric = domain_rubric(make_domain(config.environment, config.data).name, config.data.language)
    return _model_provenance(judge, prompt_hash(rubric, config.data.language))


def _policy_provenance(config: Config, llm: LLMConfig) -> dict[str, Any]:
    from arenarl.rollout.api_policy import prompt_hash

    return _model_provenance(llm, prompt_hash(config.data.language))


def _model_provenance(llm: LLMConfig, prompt: str) -> dict[str, Any]:
    return {"model": llm.model, "base_url": llm.base_url, "prompt": prompt, "date": time.strftime("%Y-%m-%d")}


class Stopwatch:
    """Seconds spent on a stage over all the times it was started; what a kill undid is not counted."""

    def __init__(self, folder: Path):
        self.path = folder / "elapsed.json"
        self._before = (read_json(self.path) or {"seconds": 0.0})["seconds"]
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return round(self._before + time.perf_counter() - self._start, 1)

    def lap(self) -> None:
        """Keep the time up to here, where a resumed run will go on."""
        write_json(self.path, {"seconds": self.seconds})


@contextmanager
def timed(folder: Path, stage: str, is_new: bool = True) -> Iterator[Stopwatch]:
    """Write the stage's seconds and peak memory (this process and its children) to `<folder>/timing.json`, when it is done.

    Where nothing is new, what an earlier run took stays.
    """
    stopwatch = Stopwatch(folder)
    yield stopwatch
    peak_kb = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if is_main_process() and (is_new or not (folder / "timing.json").is_file()):
        timing = {"stage": stage, "seconds": stopwatch.seconds, "peak_memory_gb": round(peak_kb * processes / 2**20, 2)}
        write_json(folder / "timing.json", timing)
        stopwatch.path.unlink(missing_ok=True)
