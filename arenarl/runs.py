"""What every script does around its work: threads and seeds, provenance beside the results, W&B without a login, one-line errors.

`guarded` turns a `UserError` into one line and exit code 2. `start_stage` writes what the run was: resolved config, commit,
library versions, seed. Stages are marked done by the files they write, so a finished one is not run again.
"""

import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from arenarl.config import Config, JudgeConfig, UserError, config_to_yaml

_UNREAD_BY = {  # sections that a stage does not read
    "sft": ("name", "rollout", "judge", "tournament", "reward", "rl", "evaluate", "wandb"),
    "rl": ("name", "sft", "evaluate", "wandb"),
}
_FREE_ON_RESUMING = {  # keys of LLM calls that change no verdict: a run that they stopped goes on with others
    "concurrency", "store", "store_only", "max_calls", "max_cost", "max_failure_share", "timeout_s", "patience_s", "api_key_variable",
    "price_in", "price_out",
}  # fmt: skip
_LIBRARIES = ("torch", "transformers", "trl", "accelerate", "peft", "deepspeed", "datasets", "openai", "wandb")


def guarded(main: Callable[[], None]) -> None:
    """Run a script's main; what the user can fix ends as one line on stderr and exit code 2."""
    try:
        main()
    except UserError as error:
        sys.exit(_refuse(error))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)


def _refuse(error: UserError) -> int:
    if _is_main_process():
        print(f"error: {error}", file=sys.stderr)
    return 2


def _is_main_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def start_stage(config: Config, stage: str) -> Path:
    """Make the stage's folder, fix threads, name the W&B run, write the provenance; returns runs/<run>/<stage>.

    To be called before the first model is built. Only the main process writes.
    """
    import torch
    from transformers import set_seed

    warnings.filterwarnings("ignore", message=".*torch.distributed.* is deprecated", category=FutureWarning)  # DeepSpeed's, every step
    torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # else TRL's half-gigabyte scratch buffer is filled every forward pass
    set_seed(config.seed)
    folder = config.run_dir / stage
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; change the folder's permissions or `name`") from error
    _refuse_other_settings(config, folder)
    os.environ["WANDB_MODE"] = wandb_mode(config)
    os.environ.setdefault("WANDB_PROJECT", config.wandb.project)
    os.environ.setdefault("WANDB_DIR", str(config.run_dir))
    os.environ["WANDB_NAME"] = f"{config.run_name}-{stage}"
    os.environ.setdefault("WANDB_SILENT", "true")
    if _is_main_process():
        (folder / "config.yaml").write_text(config_to_yaml(config), encoding="utf-8")
        write_json(folder / "provenance.json", provenance(config))
    return folder


def _refuse_other_settings(config: Config, folder: Path) -> None:
    """A stage that was begun with other settings is neither resumed nor overwritten."""
    unread = _UNREAD_BY.get(folder.name)
    earlier = folder / "config.yaml"
    if unread is None or not earlier.is_file():
        return
    before, now = yaml.safe_load(earlier.read_text(encoding="utf-8")), yaml.safe_load(config_to_yaml(config))
    for settings in (before, now):
        settings |= {section: _without_free_keys(settings[section]) for section in ("judge", "environment")}
    changed = [section for section in now if section not in unread and now[section] != before.get(section)]
    if changed:
        raise UserError(f"{folder} was made with other settings ({', '.join(changed)}); delete it, or give this run another `name`")


def _without_free_keys(settings: Any) -> Any:
    if isinstance(settings, list):
        return [_without_free_keys(item) for item in settings]
    if isinstance(settings, dict):
        return {name: _without_free_keys(value) for name, value in settings.items() if name not in _FREE_ON_RESUMING}
    return settings


def is_done(folder: Path) -> bool:
    """Whether a stage has finished before; says so. Its last file decides."""
    if not (folder / "timing.json").is_file():
        return False
    if _is_main_process():
        print(f"{folder} is done already; delete it to run it again")
    return True


def last_checkpoint(folder: Path) -> str | None:
    """The newest whole checkpoint to resume from: its trainer_state.json is written last."""
    import torch

    # Accelerate loads optimizer states onto "cpu:0", a place that torch's loader does not know.
    torch.serialization.register_package(5, lambda storage: None, lambda storage, place: storage if place.startswith("cpu:") else None)
    whole = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda path: int(path.name.rpartition("-")[2]))) if whole else None


def wandb_mode(config: Config) -> str:
    """`auto` is online where there is a login, offline otherwise: a run never stops to ask."""
    if config.wandb.mode != "auto":
        return config.wandb.mode
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    netrc = Path.home() / ".netrc"
    has_login = bool(os.environ.get("WANDB_API_KEY")) or (netrc.is_file() and "wandb" in netrc.read_text(errors="ignore"))
    return "online" if has_login else "offline"


def provenance(config: Config) -> dict[str, Any]:
    """Commit, library versions, seeds and judges: what a result needs to be understood later."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return {
        "commit": git.stdout.strip() or None,
        "versions": {name: version(name) for name in _LIBRARIES},
        "python": sys.version.split()[0],
        "seed": config.seed,
        "data_seed": config.data.seed,
        "judge_train": _judge_provenance(config, config.judge.train),
        "judge_eval": [_judge_provenance(config, judge) for judge in config.judge.eval],
        "judge_is_simulated": config.judge.train.is_simulated,
    }


def _judge_provenance(config: Config, judge: JudgeConfig) -> str | dict[str, Any]:
    """An LLM judge by model, endpoint and prompt, and when: models behind an API change."""
    if judge.name == "embedded":
        return judge.name
    from arenarl.judge_prompts import prompt_hash
    from arenarl.rubrics import domain_rubric

    rubric = domain_rubric(config.environment.name, config.data.language)
    prompt = prompt_hash(rubric, config.data.language)
    return {"model": judge.model, "base_url": judge.base_url, "prompt": prompt, "date": time.strftime("%Y-%m-%d")}


@contextmanager
def timed(folder: Path, stage: str) -> Iterator[None]:
    """Write the stage's wall-clock seconds and peak memory (this process and its children) to `<folder>/timing.json`."""
    start = time.perf_counter()
    yield
    peak_kb = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if _is_main_process():
        timing = {"stage": stage, "seconds": round(time.perf_counter() - start, 1), "peak_memory_gb": round(peak_kb * processes / 2**20, 2)}
        write_json(folder / "timing.json", timing)


def write_json(path: Path, value: Any) -> None:
    """Write JSON; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
