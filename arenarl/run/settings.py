"""With which settings a stage goes on that was begun with others:
those that change neither a verdict nor, but for rounding, the policy."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.system.errors import UserError

_UNREAD_BY = {  # sections that a stage does not read
    "sft": ("name", "results", "build", "judge", "tournament", "group_stage", "reward", "rl", "evaluate", "wandb"),
    "rl": ("name", "results", "build", "sft", "evaluate", "wandb"),
}
OF_CALLS = {
    "concurrency", "store", "store_only", "max_calls", "max_cost", "max_failure_share", "timeout_s", "patience_s",
    "api_key_variable", "price_in", "price_out",
}  # fmt: skip
_OF_VLLM = {"vllm_memory", "server_url", "server_weights", "parity_steps", "parity_bound"}
# keys that change no verdict, and the policy by rounding errors only: a run that they stopped goes on with others
_FREE_ON_RESUMING = {
    "judge": OF_CALLS | {"watch", "watch_share"}, "environment": OF_CALLS | {"cache", "indexes", "device"},
    "rl": {"micro_batch_size", "stop_without_valid", "save_steps"},
    "rollout": _OF_VLLM | {"batch_size"}, "policy": {"gradient_checkpointing"},
}  # fmt: skip
_NAMED = 3  # keys in a message; of more it says how many
_LONGEST = 60  # characters of a value
_WORK = ("checkpoint-*", "*.safetensors", "pytorch_model*.bin", "curve.jsonl", "groups.jsonl", "round*")


def refuse_other_settings(config: Config, folder: Path) -> None:
    """A stage that was begun with other settings is neither resumed nor overwritten.
    Raises UserError naming the keys."""
    if has_begun(folder) and (changed := other_settings(config, folder)):
        raise UserError(
            f"{folder} was made with other settings ({changed}); delete it, or give this run another `name`"
        )


def has_begun(folder: Path) -> bool:
    """Whether anything in a stage's folder took work: a check, a typo or a kill before the first step leaves nothing to
    lose."""
    return any(any(folder.glob(pattern)) for pattern in _WORK)


def other_settings(config: Config, folder: Path) -> str:
    """The first keys in which the settings that are kept in the folder differ from these;
    a key that did not exist then had its default."""
    earlier = folder / "config.yaml"
    if folder.name not in _UNREAD_BY or not earlier.is_file():
        return ""
    try:
        old, new = (settings_of(folder.name, one) for one in (load_config(earlier), config))
    except UserError as error:
        return f"which cannot be read now: {error}"
    for settings in (old, new):
        if folder.name == "sft" and settings["sft"]["stop_at_valid"] is None:  # else it says when SFT may stop
            settings["sft"] = without({"save_steps"}, settings["sft"])
    return differences(old, new)


def settings_of(stage: str, config: Config) -> dict[str, Any]:
    """All that decides what `sft` or `rl` makes of its start, by section."""
    settings = asdict(config)
    settings |= {section: without(free, settings[section]) for section, free in _FREE_ON_RESUMING.items()}
    unread = set(_UNREAD_BY[stage])
    if stage == "sft" and config.sft.stop_at_valid is not None:  # SFT makes trajectories too, for RL's queries
        settings["rl"] = {key: settings["rl"][key] for key in ("subtasks", "difficulty")}
        unread -= {"rl"}
    elif stage == "sft":
        settings["rollout"] = {"system_prompt": settings["rollout"]["system_prompt"]}
    return {section: of for section, of in settings.items() if section not in unread}


def without(keys: set[str], settings: Any) -> Any:
    if isinstance(settings, list):
        return [without(keys, item) for item in settings]
    if isinstance(settings, dict):
        return {name: without(keys, value) for name, value in settings.items() if name not in keys}
    return settings


def differences(old: Any, new: Any) -> str:
    """The first keys whose values differ, dotted, an item of a list by its number; empty where none does.

    >>> differences({"rl": {"steps": 4, "beta": 0.1}, "seed": 0}, {"rl": {"steps": 8, "beta": None}, "seed": 0})
    'rl.steps 4 → 8, rl.beta 0.1 → null'
    """
    found = list(_differing(old, new))
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(f"{name} {_shown(before)} → {_shown(now)}" for name, before, now in found[:_NAMED]) + more


def _differing(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    are_lists = isinstance(old, list) and isinstance(new, list) and len(old) == len(new)
    if are_lists and any(isinstance(item, dict) for item in new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield key, old, new
        return
    for name in [*old, *(name for name in new if name not in old)]:
        yield from _differing(old.get(name), new.get(name), f"{key}.{name}" if key else str(name))


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
