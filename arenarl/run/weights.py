"""The start record of SFT and RL (`start.json`): hashes of all inputs that decide the trained policy.

A stage resumes only with the inputs of its start. Otherwise RL would continue with another reference policy, tokenizer
or data, and evaluation would compare its policy with the wrong starting policy. This module also hashes weights, and
refuses weights files that are damaged.
"""

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from arenarl.config.load import config_to_yaml
from arenarl.config.schema import Config
from arenarl.run.marks import MARK, files_beside_weights, sha256
from arenarl.run.settings import other_settings
from arenarl.system.atomic_files import hash_files, json_hash, read_json
from arenarl.system.errors import UserError, one_line
from arenarl.system.own_code import OWN_CODE, code_hashes
from arenarl.system.progress import say
from arenarl.system.prompt_files import OWN_PROMPT
from arenarl.system.repository import file_named
from arenarl.system.yaml_text import read_yaml

START = "start.json"
_SPLITS = {"sft": ("sft",), "rl": ("rl_queries", "test_queries", "test_baselines")}  # stage -> splits that it reads


@dataclass(frozen=True)
class _Index:
    """Content of the file that lists the weights files of a model."""

    weight_map: dict[str, str]  # tensor -> file


@dataclass(frozen=True)
class StartRecord:
    """All inputs of a stage. Earlier versions stored only `policy` and `weights`."""

    policy: str | None  # folder or hub id; None for a policy from scratch
    weights: str | None  # hash of the weights, or the hub id
    # hashes of the policy's config, tokenizer, chat template and code; for a hub id, its revision
    files: dict[str, str] | None = None
    data: dict[str, str | None] | None = None  # hashes of the splits and of files that the config names
    settings: dict[str, Any] | None = field(default=None, repr=False)  # the config

    def changed_content(self, now: "StartRecord") -> list[str]:
        """Return the names of files and prompts whose content differs from `now`.

        Both must hold `files` and `data`. A name that this record lacks counts only if it is a new file of
        prompts.folder, because earlier versions did not hash the prompts and query_rubrics of judge.alternates.
        """
        files = [f"{now.policy}/{name}" for name in _different(self.files, now.files)]
        known = {name: sha256 for name, sha256 in now.data.items() if name in self.data or name.startswith(OWN_PROMPT)}
        return files + [name for name in _different(self.data, known) if not name.startswith(OWN_CODE)]

    def changed_code(self, now: Mapping[str, str | None]) -> list[str]:
        """Return the user's own functions and classes whose code differs from `now`, hashes by name as in `data`."""
        code = {name: sha256 for name, sha256 in now.items() if name.startswith(OWN_CODE)}
        return [name for name, sha256 in code.items() if (self.data or {}).get(name, sha256) != sha256]


def _different(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [name for name in {**old, **new} if old.get(name) != new.get(name)]


def start_record(
    config: Config, stage: str, provenance: dict[str, Any], policy: str | None, query_ids: Sequence[str] = ()
) -> StartRecord:
    """Return the record of a stage that starts now; `query_ids` are RL's queries, in the order of their file."""
    hashes, splits = provenance.get("data_sha256", {}), _SPLITS[stage]
    if stage == "sft" and config.sft.stop_at_valid is not None:  # SFT also rolls out RL's queries
        splits += ("rl_queries",)
    data = {f"{name}.jsonl": hashes.get(name) for name in splits}
    data["the system prompt"] = provenance.get("system_prompt")
    if stage == "rl":
        judges = [provenance.get("judge_train"), *provenance.get("judge_alternates", ())]
        for key, judge in zip(config.judge.training, judges, strict=False):  # a finished stage has no provenance
            if isinstance(judge, dict):  # an LLM
                data[f"{key}'s prompts and rubric"] = judge["prompt"]
    data |= {OWN_PROMPT + name: sha256 for name, sha256 in provenance.get("prompts", {}).items()}
    if query_ids:
        data["RL's queries (pass rates)"] = json_hash(query_ids)
    query_rubrics = [judge.query_rubrics for judge in config.judge.training.values()] if stage == "rl" else []
    for name in (getattr(config, stage).deepspeed, *query_rubrics):
        if name and (file := file_named(name)).is_file():
            data[name] = sha256(file)
    settings = read_yaml(config_to_yaml(config))
    if stage == "rl":
        data |= code_hashes(settings)
    weights = hash_weights(policy) if policy else None
    files = _hash_beside_weights(policy) if policy else {}
    return StartRecord(policy, weights, files, data, settings)


def _hash_beside_weights(policy: str) -> dict[str, str]:
    folder = local_folder(policy)
    if folder is None:
        return {}
    if folder == Path(policy):
        return files_beside_weights(folder)
    return {"revision": folder.name}  # a hub id's files are downloaded one by one, but its revision names them all


def read_start(folder: Path) -> StartRecord | None:
    """Return the record in a stage's folder, None without one. Raises UserError for a damaged record."""
    remedy = f"restore it, or delete {folder} to restart the stage"
    return read_json(folder / START, StartRecord, remedy)


def start_hash(folder: Path) -> str | None:
    """Return the hash of the record of the stage that writes checkpoints into `folder`, its own or a round's.
    None without a record."""
    record = read_start(folder) or (read_start(folder.parent) if folder.name.startswith("round") else None)
    return json_hash(asdict(record)) if record else None


def refuse_other_start(folder: Path, config: Config, now: StartRecord, is_finished: bool) -> None:
    """Raise UserError if the folder holds work of a stage that started from other or unknown inputs.

    A finished stage needs no data. If an earlier version finished it, it has no mark, and may have no record.
    """
    record = read_start(folder)
    is_known = record is not None and None not in (record.files, record.data, record.settings)
    is_old = is_finished and not (folder / MARK).is_file()
    if not is_known and not (is_old and (folder / "config.yaml").is_file()):
        problem = f"has no {START}" if record is None else f"has a {START} of an earlier version"
        unknown = "so its work may come from other weights, data or settings"
        how = "restore the file, finish the stage with the version that started it"
        again = f"delete {folder} to restart the stage, or give this run another `name`"
        raise UserError(f"{folder} {problem}, {unknown}; {how}, {again}")
    how = "delete it, or give this run another `name`"
    if changed := other_settings(config, folder, record and record.settings):
        raise UserError(f"{folder} was made with other settings ({changed}); {how}")
    if record is None:
        say(f"{folder} has no {START}; only its settings are compared with this config")
        return
    if record.weights != now.weights:
        how = f"delete {folder} to train it from these, or give this run another `name`"
        raise UserError(f"{folder} was trained from other weights than {now.policy} has now; {how}")
    if names := record.changed_code(now.data):  # no error: a mended crash may resume
        earlier = f"has trained with an earlier version of {', '.join(names)}"
        say(f"{folder} {earlier}; to train with the new one alone, delete it, or give this run another `name`")
    if not is_finished and (names := record.changed_content(now)):
        how = f"restore it, delete {folder}, or give this run another `name`"
        raise UserError(f"{folder} was started with other content of {', '.join(names)}; {how}")


def hash_weights(policy: str) -> str:
    """Return the sha256 of the weights in a policy's folder, or `policy` itself for a hub id or an empty folder."""
    files = sorted(Path(policy).glob("*.safetensors")) or sorted(Path(policy).glob("pytorch_model*.bin"))
    if len(files) == 1:
        return sha256(files[0])  # shared with the mark's check
    return _hash(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files)) if files else policy


@lru_cache  # the weights may be 16 GB
def _hash(files: tuple[tuple[Path, int, int], ...]) -> str:
    return hash_files(path for path, _, _ in files)


def local_folder(policy: str) -> Path | None:
    """Return the folder of a policy: its path, or the downloaded revision of a hub id, None before its download."""
    from huggingface_hub import try_to_load_from_cache  # loads for a second

    if Path(policy).is_dir():
        return Path(policy)
    try:
        config = try_to_load_from_cache(policy, "config.json")
    except ValueError:  # neither a folder nor a hub id
        return None
    return Path(config).parent if isinstance(config, str) else None


def refuse_cut_weights(folder: Path, is_downloaded: bool = False) -> None:
    """Raise UserError if a weights file is shorter or longer than its header says, or is missing.

    A downloaded folder may lack files, which are then downloaded.
    """
    from safetensors import SafetensorError, safe_open  # late, as above

    how = "restore it, download it again, or rerun the stage that writes it"
    for index in [*folder.glob("*.safetensors.index.json"), *folder.glob("pytorch_model*.bin.index.json")]:
        names = read_json(index, _Index, how).weight_map.values()
        missing = sorted({name for name in names if not (folder / name).is_file()})
        if missing and not is_downloaded:
            raise UserError(f"{index} names {missing[0]}, which does not exist; {how}")
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
        if not path.is_file():  # a link whose target was deleted, or a folder
            if is_downloaded:
                continue
            raise UserError(f"{path} is not a file, or a link to a file that does not exist; {how}")
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, "numpy"):  # reads the header, and compares it with the file's size
                    pass
            elif b"PK".startswith(path.open("rb").read(2)):  # else torch's format before 1.6, which is not a zip file
                zipfile.ZipFile(path).close()
        except (SafetensorError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} is damaged ({one_line(error)}); {how}") from error


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
