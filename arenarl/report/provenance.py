"""Provenance of a result: how it was made. Every stage writes it to its folder, evaluation also to
runs/<run>/summary.json."""

import platform
import re
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config, JudgeConfig, LLMConfig
from arenarl.domains.domain import make_domain
from arenarl.domains.prepared import split_hashes
from arenarl.domains.rubrics import domain_rubric
from arenarl.judges.prompts import prompt_hash
from arenarl.rollout.system_prompt import default_prompt, prompt_name, system_prompt
from arenarl.system.atomic_files import hash_files
from arenarl.system.prompt_files import prompt_hashes
from arenarl.system.repository import ROOT, file_named

LIBRARIES = ("torch", "transformers", "trl", "accelerate", "peft", "deepspeed", "datasets", "aiohttp", "wandb")


def commit(tree: Path = ROOT) -> str | None:
    """Return the working tree's commit, with `-dirty` if tracked files differ from it. Changes in results/ do not
    count, because no run reads them. None without git, and if git does not track `tree`, as in an environment inside
    another project's repository."""

    def git(*arguments: str) -> str:
        # else git refuses a checkout of another user, as root of a container finds it
        command = ["git", "-c", "safe.directory=*", *arguments]
        return subprocess.run(command, cwd=tree, capture_output=True, encoding="utf-8", check=False).stdout.strip()

    if shutil.which("git") is None or not git("ls-files", "--", "."):
        return None
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)results")
    return (git("describe", "--always") + ("-dirty" if changed else "")) or None


def provenance(config: Config, stage: str = "evaluate") -> dict[str, Any]:
    """Return commit, library versions, CPU, seeds, hashes of the data, judges, system prompts and API models."""
    api_prompt = prompt_name(default_prompt(config.data.language, config.environment.has_tools))
    return {
        "commit": commit(),
        "versions": {name: installed_version(name) for name in LIBRARIES} | _vllm_version(config),
        "python": sys.version.split()[0],
        "cpu": cpu(),
        "seed": config.seed,
        "data_seed": config.data.seed,
        "data_sha256": split_hashes(config.data.folder),
        "judge_train": _judge_provenance(config, config.judge.train),
        "judge_alternates": [_judge_provenance(config, judge) for judge in config.judge.alternates],
        "judge_watch": [_judge_provenance(config, judge) for judge in config.judge.watching.values()],
        "judge_eval": [_judge_provenance(config, judge) for judge in config.judge.eval],
        "system_prompt": prompt_name(system_prompt(config, stage)),
        "api_policies": {name: _model_provenance(llm, api_prompt) for name, llm in config.evaluate.api.items()},
        "judge_is_simulated": any(judge.is_simulated for judge in config.judge.training.values()),
    } | ({"prompts": hashes} if (hashes := prompt_hashes(config.prompts.folder)) else {})


def installed_version(package: str) -> str | None:
    """Return a package's version; None if it is not installed, because not every run needs every package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu() -> str:
    """Return the CPU's name and torch's instruction set, which decides how sums are rounded."""
    import torch

    path = Path("/proc/cpuinfo")
    name = re.search(r"model name\s*: (.*)", path.read_text(encoding="utf-8")) if path.is_file() else None
    return f"{name[1] if name else platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def _vllm_version(config: Config) -> dict[str, str]:
    """Return the version of vLLM's package if vLLM generates in this run. The package's name depends on the device."""
    names = packages_distributions().get("vllm", []) if config.rollout.backend == "vllm" else []
    return {name: version(name) for name in names}


def _judge_provenance(config: Config, judge: JudgeConfig) -> str | dict[str, Any]:
    """Return a judge's name; for an LLM judge, model, endpoint, prompt hash and date, because API models change."""
    if judge.name != "llm":
        return judge.name
    rubric = domain_rubric(make_domain(config.environment, config.data).name, config.data.language)
    rubrics = file_named(judge.query_rubrics or "")
    query_rubrics = {"query_rubrics": hash_files([rubrics])[:12]} if rubrics.is_file() else {}  # its reader reports it
    more = [*["turns"] * judge.name_turns, *["propose"] * (config.reward.name == "evolving_rubrics")]
    return _model_provenance(judge, prompt_hash(rubric, config.data.language, more)) | query_rubrics


def _model_provenance(llm: LLMConfig, prompt: str) -> dict[str, Any]:
    return {"model": llm.model, "base_url": llm.base_url, "prompt": prompt, "date": time.strftime("%Y-%m-%d")}
