"""Whether `data.folder` holds what a config names: data/prepare.py notes in its manifest.json what it made the files
from.

A stage reads what is there. Without this, files of another seed or size would be trained on, or tested with, under the
config's name. Data of somebody's own has no manifest and passes.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from arenarl.config.load import over
from arenarl.config.schema import DataConfig, EnvironmentConfig
from arenarl.run.settings import CALL_KEYS, differences, without
from arenarl.system.atomic_files import hash_files, read_json
from arenarl.system.errors import UserError

_MAKES = {  # keys of `data` that make one split and no other
    "sft": {"sft_size", "teacher_skill", "careful_share"},
    "rl": {"rl_size"},
    "test": {"test_per_subtask", "baseline_attempts", "baseline_skill"},
}
_OF_SOURCE = ("source", "divide", "language")  # that apply to published data as it is
# that the files show
_OF_ENVIRONMENT = {"sft": ("world_seed", "results"), "rl": ("world_seed",), "test": ("world_seed",)}
FILES = ("sft", "rl_queries", "test_queries", "test_baselines")


def refuse_other_data(data: DataConfig, environment: EnvironmentConfig, split: str) -> None:
    """Raises UserError if data/prepare.py made `split` (sft, rl or test)
    from other settings than these, or was stopped before its end."""
    manifest = manifest_of(Path(data.folder))
    if manifest is None:
        return
    if "data" not in manifest:
        raise UserError(f"{data.folder}: data/prepare.py has not come to its end there; run it again with this config")
    made = over(asdict(DataConfig()), manifest["data"])
    if _may_be_copies(made["source"], manifest.get("sources", []), data.source):
        made["source"] = data.source
    pairs = (made, manifest["environment"]), (asdict(data), asdict(environment))
    if changed := differences(*_compared(*pairs, split=split)):
        how = "python data/prepare.py with this config makes it anew"
        otherwise = "else change these keys, or name another data.folder"
        raise UserError(f"{data.folder} was prepared with other settings ({changed}); {how}; {otherwise}")


def _compared(*pairs: tuple[dict[str, Any], dict[str, Any]], split: str) -> list[dict[str, Any]]:
    """Of each pair of sections, `data` and `environment`, what decides the split's content."""
    unread = {"folder"}.union(CALL_KEYS, *(keys for name, keys in _MAKES.items() if name != split))
    sections = [{"data": without(unread, data)} for data, _ in pairs]
    if any(data["source"] and not data["divide"] for data, _ in pairs):
        return [{"data": {key: section["data"][key] for key in _OF_SOURCE}} for section in sections]
    if not any(data["source"] for data, _ in pairs):  # published data shows no world of ours
        for section, (_, environment) in zip(sections, pairs, strict=True):
            section["environment"] = {key: environment[key] for key in _OF_ENVIRONMENT[split]}
    return sections


def _may_be_copies(made: list[str], hashes: list[str | None], named: list[str]) -> bool:
    """Whether a folder stands in for what else the names differ in:
    a clone of a data set of the hub, at another place on another machine."""
    was_local = [sha256 is not None for sha256 in hashes] or [False] * len(made)
    pairs = zip(made, named, was_local, strict=False)
    return len(made) == len(named) and all(one == other or local or _is_here(other) for one, other, local in pairs)


def _is_here(source: str) -> bool:
    try:
        return Path(source).expanduser().exists()
    except (OSError, RuntimeError):  # nobody's home, or a folder that may not be looked into
        return False


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """What data/prepare.py noted of its splits in a folder;
    None if there is nothing of it, though perhaps a manifest of another program."""
    manifest = read_json(folder / "manifest.json")
    splits = manifest.get("splits") if isinstance(manifest, dict) else None
    if not isinstance(splits, dict):
        return None
    return manifest if all(isinstance(one, dict) and "sha256" in one for one in splits.values()) else None


def split_hashes(folder: str) -> dict[str, str]:
    """sha256 of each split that is there, by its file's name; those of data/prepare.py stand in its manifest too."""
    paths = {name: Path(folder) / f"{name}.jsonl" for name in FILES}
    return {name: hash_files([path]) for name, path in paths.items() if path.is_file()}
