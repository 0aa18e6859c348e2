"""Check that the files in `data.folder` were prepared with the config's settings.

data/prepare.py writes its settings into manifest.json beside the files, and each stage compares them with its own. So
no stage trains or tests on files of another seed or size. A folder without a manifest is a user's own data and passes.
"""

import os
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arenarl.config.load import over
from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.run.settings import CALL_KEYS, differences, without
from arenarl.system.atomic_files import hash_files, read_json
from arenarl.system.errors import UserError
from arenarl.trajectory import SPLIT_FILES

_KEYS_OF_SPLIT = {  # keys of `data` that decide the content of one split only
    "sft": {"sft_size", "teacher_skill", "careful_share"},
    "rl": {"rl_size"},
    "test": {"test_per_subtask", "baseline_attempts", "baseline_skill"},
}
_KEYS_OF_SOURCE = ("source", "divide", "language")  # keys of `data` that apply to undivided published data
# keys of `environment` that decide the content of a split
_ENVIRONMENT_KEYS = {"sft": ("world_seed", "results"), "rl": ("world_seed",), "test": ("world_seed",)}


def refuse_other_data(data: DataConfig, environment: EnvironmentConfig, *splits: str) -> None:
    """Raise UserError if data/prepare.py prepared one of `splits` (sft, rl, test) with other settings, or did not
    finish. The error names the keys of all these splits."""
    manifest = manifest_of(Path(data.folder))
    if manifest is None:
        return
    if "data" not in manifest:
        raise UserError(f"{data.folder}: data/prepare.py did not finish; run it again with this config")
    try:
        old = over(asdict(DataConfig()), manifest["data"])
        if _may_be_copies(old["source"], manifest.get("sources", []), data.source):
            old["source"] = data.source
        sections = (old, manifest["environment"]), (asdict(data), asdict(environment))
        changed = differences(*_deciding_settings(*sections, splits=splits))
    except (LookupError, TypeError, AttributeError) as error:
        how = "restore it, or rerun python data/prepare.py with this config"
        raise UserError(f"{data.folder}/manifest.json is damaged; {how}") from error
    if changed:
        how = "rerun python data/prepare.py with this config, change these keys, or name another data.folder"
        raise UserError(f"{data.folder} was prepared with other settings ({changed}); {how}")


def _deciding_settings(*pairs: tuple[dict[str, Any], dict[str, Any]], splits: Collection[str]) -> list[dict[str, Any]]:
    """Reduce each pair of sections, `data` and `environment`, to the keys that decide the content of `splits`."""
    others = {"folder"}.union(CALL_KEYS, *(keys for name, keys in _KEYS_OF_SPLIT.items() if name not in splits))
    settings = [{"data": without(others, data)} for data, _ in pairs]
    if any(data["source"] and not data["divide"] for data, _ in pairs):
        return [{"data": {key: section["data"][key] for key in _KEYS_OF_SOURCE}} for section in settings]
    if not any(data["source"] for data, _ in pairs):  # published data does not depend on our environment
        for section, (_, environment) in zip(settings, pairs, strict=True):
            world = ("name",) if environment.get("domain") == "agentgym" else ()  # all servers share a domain
            keys = dict.fromkeys(key for split in splits for key in _ENVIRONMENT_KEYS[split])
            section["environment"] = {key: environment[key] for key in (*keys, *world)}
    return settings


def _may_be_copies(old: list[str], hashes: list[str | None], new: list[str]) -> bool:
    """Return True if the sources may be the same data: each pair has equal names, or one of the two is local.

    A folder may be a clone of a hub data set, or lie at another path on another machine.
    """
    was_local = [sha256 is not None for sha256 in hashes] or [False] * len(old)
    pairs = zip(old, new, was_local, strict=False)
    return len(old) == len(new) and all(a == b or is_local or os.path.exists(b) for a, b, is_local in pairs)


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """Read the manifest that data/prepare.py wrote into the folder; None if missing or from another program."""
    manifest = read_json(folder / "manifest.json")
    splits = manifest.get("splits") if isinstance(manifest, dict) else None
    if not isinstance(splits, dict):
        return None
    return manifest if all(isinstance(split, dict) and "sha256" in split for split in splits.values()) else None


def split_hashes(folder: str) -> dict[str, str]:
    """Return the sha256 of each split's file that exists, by file name without suffix."""
    paths = {name: Path(folder) / f"{name}.jsonl" for name in SPLIT_FILES}
    return {name: hash_files([path]) for name, path in paths.items() if path.is_file()}
