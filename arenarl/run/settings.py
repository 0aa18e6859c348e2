"""Settings that may change when a stage resumes: they change no verdict, and the policy only by rounding errors."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arenarl.config.load import config_of_keys, load_config
from arenarl.config.schema import Config
from arenarl.system.errors import UserError

_UNREAD = {  # stage -> sections that it does not read
    "sft": ("name", "results", "build", "judge", "tournament", "group_stage", "reward", "rl", "evaluate", "wandb"),
    "rl": ("name", "results", "build", "sft", "evaluate", "wandb"),
}
CALL_KEYS = {  # limits and addresses of LLM calls
    "concurrency", "store", "store_only", "max_calls", "max_cost", "max_failure_share", "timeout_s", "patience_s",
    "api_key_variable", "price_in", "price_out", "price_cached",
}  # fmt: skip
_FREE_KEYS = {  # section -> keys that may change when a stage resumes
    "judge": CALL_KEYS | {"watch", "watch_share"}, "environment": CALL_KEYS | {"cache", "indexes", "device", "server"},
    "rl": {"micro_batch_size", "stop_without_valid", "save_steps"}, "policy": {"gradient_checkpointing"},
    "prompts": {"folder"},  # the start record has the files' hashes
    "rollout": {"vllm_memory", "server_url", "server_weights", "parity_steps", "parity_bound", "batch_size"},
}  # fmt: skip
_MOST_KEYS = 3  # keys in a message; further keys are counted
_MOST_CHARACTERS = 60  # characters of a value in a message
_WORK = ("checkpoint-*", "*.safetensors", "pytorch_model*.bin", "curve.jsonl", "groups.jsonl", "round*")


def has_begun(folder: Path) -> bool:
    """True if a stage's folder holds work. After a check, a typo or a kill before the first step it holds none."""
    return any(any(folder.glob(pattern)) for pattern in _WORK)


def other_settings(config: Config, folder: Path, keys: dict[str, Any] | None = None) -> str:
    """Return the first keys that differ from the config of a stage's start, "" if none does.

    A key that did not exist when the stage started counts as its default. `keys` is the config as the start record
    stores it; None reads the folder's config.yaml, if it exists.
    """
    earlier = folder / "config.yaml"
    if keys is None and not earlier.is_file():
        return ""
    try:
        start = load_config(earlier) if keys is None else config_of_keys(keys, str(folder))
        old, new = (settings_of(folder.name, each) for each in (start, config))
    except UserError as error:
        return f"which this version cannot read: {error}"
    for settings in (old, new):
        if folder.name == "sft" and settings["sft"]["stop_at_valid"] is None:  # else SFT may stop at each checkpoint
            settings["sft"] = without({"save_steps"}, settings["sft"])
    return differences(old, new)


def settings_of(stage: str, config: Config) -> dict[str, Any]:
    """Return, by section, the settings on which the policy made by `sft` or `rl` depends."""
    settings = asdict(config)
    settings |= {section: without(free, settings[section]) for section, free in _FREE_KEYS.items()}
    unread = set(_UNREAD[stage])
    if stage == "sft" and config.sft.stop_at_valid is not None:  # SFT also rolls out RL's queries
        settings["rl"] = {"subtasks": settings["rl"]["subtasks"]}
        unread -= {"rl"}
    elif stage == "sft":
        settings["rollout"] = {"system_prompt": settings["rollout"]["system_prompt"]}
    return {section: of for section, of in settings.items() if section not in unread}


def without(keys: set[str], settings: Any) -> Any:
    """Return nested settings without these keys, at any depth."""
    if isinstance(settings, list):
        return [without(keys, item) for item in settings]
    if isinstance(settings, dict):
        return {name: without(keys, value) for name, value in settings.items() if name not in keys}
    return settings


def differences(old: Any, new: Any) -> str:
    """Return the first keys whose values differ, dotted, list items by number; "" if no value differs.

    >>> differences({"rl": {"steps": 4, "beta": 0.1}, "seed": 0}, {"rl": {"steps": 8, "beta": None}, "seed": 0})
    'rl.steps 4 → 8, rl.beta 0.1 → null'
    """
    changes = list(_changes(old, new))
    more = f" and {len(changes) - _MOST_KEYS} more" if len(changes) > _MOST_KEYS else ""
    return ", ".join(f"{key} {_short(before)} → {_short(now)}" for key, before, now in changes[:_MOST_KEYS]) + more


def _changes(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    are_lists = isinstance(old, list) and isinstance(new, list) and len(old) == len(new)
    if are_lists and any(isinstance(item, dict) for item in new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield key, old, new
        return
    for name in [*old, *(name for name in new if name not in old)]:
        yield from _changes(old.get(name), new.get(name), f"{key}.{name}" if key else str(name))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
