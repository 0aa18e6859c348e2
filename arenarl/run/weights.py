"""The start record of SFT and RL (`start.json`): hashes of all inputs that decide the trained policy.

A stage resumes only from the inputs that it started from. Otherwise RL would continue with another reference policy,
tokenizer or data, and evaluation would compare it with a start that it never had.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from arenarl.config.load import config_to_yaml
from arenarl.config.schema import Config
from arenarl.config.yaml_text import read_yaml
from arenarl.run.marks import files_beside_weights, sha256
from arenarl.run.settings import other_settings
from arenarl.system.atomic_files import hash_files, read_json
from arenarl.system.database import json_hash
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.system.repository import file_named

START = "start.json"
_SPLITS = {"sft": ("sft",), "rl": ("rl_queries", "test_queries", "test_baselines")}  # stage -> splits that it reads


@dataclass(frozen=True)
class StartRecord:
    """All inputs of a stage. Those that are None were not stored by an earlier version."""

    policy: str | None  # folder or hub id; None for a policy from scratch
    weights: str | None  # hash, or the hub id
    files: dict[str, str] | None = None  # hashes of the policy's config, tokenizer, chat template and code
    data: dict[str, str | None] | None = None  # hashes of the splits and of files that the config names
    settings: dict[str, Any] | None = field(default=None, repr=False)  # the config

    def changed_content(self, now: "StartRecord") -> list[str]:
        """Return the names of files, and "the system prompt", whose content differs from `now`."""
        before, after = (record.files or {} for record in (self, now))
        names = [f"{now.policy}/{name}" for name in {**before, **after} if before.get(name) != after.get(name)]
        before, after = (record.data or {} for record in (self, now))
        return names + [name for name in {**before, **after} if before.get(name) != after.get(name)]


def start_record(
    config: Config, stage: str, provenance: dict[str, Any], policy: str | None, query_ids: Sequence[str] = ()
) -> StartRecord:
    """Return the record of a stage that starts now; `query_ids` are RL's queries, in the order of their file."""
    hashes = provenance.get("data_sha256", {})
    data = {f"{name}.jsonl": hashes.get(name) for name in _SPLITS[stage]}
    data["the system prompt"] = provenance.get("system_prompt")
    if query_ids:
        data["RL's queries (pass rates)"] = json_hash(query_ids)
    files = [getattr(config, stage).deepspeed, config.judge.train.query_rubrics if stage == "rl" else None]
    data |= {file: sha256(file_named(Path(file))) for file in files if file and file_named(Path(file)).is_file()}
    beside = files_beside_weights(Path(policy)) if policy and Path(policy).is_dir() else {}
    weights = hash_weights(policy) if policy else None
    return StartRecord(policy, weights, beside, data, read_yaml(config_to_yaml(config)))


def read_start(folder: Path) -> StartRecord | None:
    """Return the record in a stage's folder, None without one. Raises UserError for a damaged record."""
    remedy = f"restore it, or delete {folder} to restart the stage"
    return read_json(folder / START, StartRecord, remedy)


def start_hash(folder: Path) -> str | None:
    """Return the hash of the record of the stage that writes checkpoints into `folder`, its own or a round's."""
    record = read_start(folder) or (read_start(folder.parent) if folder.name.startswith("round") else None)
    return json_hash(asdict(record)) if record else None


def refuse_other_start(folder: Path, config: Config, now: StartRecord, is_finished: bool) -> None:
    """Raise UserError if the folder holds work of a stage that started from other inputs, or from unknown ones.

    A finished stage needs no data, and may have an incomplete record of an earlier version.
    """
    record = read_start(folder)
    is_whole = record is not None and None not in (record.files, record.data, record.settings)
    how = f"delete {folder} to restart the stage, or give this run another `name`"
    if not is_whole and not is_finished:
        lacking = f"has no {START}" if record is None else f"has an incomplete {START}, of an earlier version"
        unknown = "so its work may come from other weights, data or settings"
        raise UserError(f"{folder} {lacking}, {unknown}; restore the file, {how}")
    if changed := other_settings(config, folder, record and record.settings):
        how = "delete it, or give this run another `name`"
        raise UserError(f"{folder} was made with other settings ({changed}); {how}")
    if record is None:
        say(f"{folder} has no {START}; only its settings are compared with this config")
        return
    if record.weights != now.weights:
        how = f"delete {folder} to train it from these, or give this run another `name`"
        raise UserError(f"{folder} was trained from other weights than {now.policy} has now; {how}")
    if is_whole and not is_finished and (names := record.changed_content(now)):
        how = f"restore it, delete {folder}, or give this run another `name`"
        raise UserError(f"{folder} was begun with other content of {', '.join(names)}; {how}")


def hash_weights(policy: str) -> str:
    """Return the sha256 of the weights in a policy's folder, or `policy` itself for a hub id or an empty folder."""
    files = sorted(Path(policy).glob("*.safetensors")) or sorted(Path(policy).glob("pytorch_model*.bin"))
    if len(files) == 1:
        return sha256(files[0])  # shared with the mark's check
    return _hash(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files)) if files else policy


@lru_cache  # the weights may be 16 GB
def _hash(files: tuple[tuple[Path, int, int], ...]) -> str:
    return hash_files(path for path, _, _ in files)


def refuse_other_starts(policies: Iterable[str]) -> None:
    """Raise UserError if one of the compared policies was trained from an earlier version of another."""
    folders = {Path(policy).resolve(): policy for policy in policies}
    for policy in folders.values():
        record = read_start(Path(policy))
        start = folders.get(Path(record.policy).resolve()) if record and record.policy else None
        if start and record.weights != hash_weights(start):
            how = f"delete {policy} and train it again, or name only one of them in evaluate.checkpoints"
            compared = "so they cannot be compared"
            raise UserError(f"{policy} was trained from other weights than {start} has now, {compared}; {how}")
