"""The system prompt, with the form of an answer (`rollout.system_prompt`), for SFT, RL, difficulty and evaluation.

A pretrained model needs it to give valid answers before SFT, or without SFT. A policy from scratch has none: SFT
teaches it the form in a fraction of the tokens. Not in the papers; our choice.

SFT and RL write their system prompt beside the weights (`system_prompt.json`), and later stages read it there. A folder
without that file holds a pretrained model.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config
from arenarl.llm.prompts import prompt_texts
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.errors import UserError
from arenarl.system.progress import is_main_process, say
from arenarl.system.prompt_files import prompt_file
from arenarl.system.user_input import text_of_file

FILE = "system_prompt.json"
PREVIEW = 60  # characters of a prompt in a line


@dataclass(frozen=True)
class _Stored:
    """Content of the file."""

    system_prompt: str | None


def system_prompt(config: Config, stage: str = "rl") -> str | None:
    """Return the system message of all prompts of a local policy, or None.

    Without `rollout.system_prompt` it is the stored prompt of the policy that `stage` starts from: `policy.model` for
    `sft`, the start of RL for every later stage. Raises UserError for an unusable file, or if an older version trained
    the policy with a system prompt that it did not store.
    """
    return _resolve(config, stage)[0]


def keep_system_prompt(config: Config, folder: Path, stage: str) -> None:
    """Write a stage's system prompt beside its weights, and print it unless the config sets it; main process only."""
    text, origin = _resolve(config, stage)
    if is_main_process():
        write_json(folder / FILE, {"system_prompt": text})
    _say_prompt(text, origin)


def say_prompts(config: Config, policies: Mapping[str, str]) -> None:
    """Print the system prompt of evaluation, and a line for each policy that was trained with another prompt.
    `policies` maps names to folders."""
    text, origin = _resolve(config, "rl")
    if policies:
        _say_prompt(text, origin)
    for name, policy in policies.items():
        try:
            stored = _read_stored(policy, config)
        except UserError as error:  # evaluation's prompt does not depend on it
            say(f"{name}: {error}")
            continue
        if stored and (own := stored[1].system_prompt) != text:
            problem = f"was trained with another system prompt ({preview(own)}) than evaluation uses ({preview(text)})"
            say(f"{name} {problem}; evaluate it with its own config")


def preview(text: str | None) -> str:
    """Return the start of a prompt in a single line."""
    line = " ".join(text.split()) if text else "none"
    return line if len(line) <= PREVIEW else f"{line[:PREVIEW]}…"


def _say_prompt(text: str | None, origin: str) -> None:
    if origin:
        say(f"system prompt, {origin}: {preview(text)}; rollout.system_prompt sets another")


def _resolve(config: Config, stage: str) -> tuple[str | None, str]:
    """Return (prompt, origin); the origin is "" if the config sets the prompt or a policy from scratch has none."""
    if file := config.rollout.system_prompt_file:
        path = prompt_file(file)
        if text := text_of_file(path).strip():
            return text, ""
        raise UserError(f"rollout.system_prompt: {path} is empty; write none for no system prompt")
    if (text := config.rollout.system_prompt) is not None:
        return None if text == "none" else text.strip(), ""
    model, starts = config.policy.model, [config.policy.model]
    if stage != "sft":
        model, starts = config.rl.init or model, [config.sft_policy, None if config.rl.init else model]
    for start in filter(None, starts):
        if stored := _read_stored(start, config):
            folder, text = stored[0], stored[1].system_prompt
            return text, f"as in {folder}" if text or model else ""
    if model:
        return default_prompt(config.data.language, config.environment.has_tools), "our default"
    return None, ""


def _read_stored(policy: str, config: Config) -> tuple[Path, _Stored] | None:
    """Return (folder, content) of the file beside a policy or its checkpoint, or None without such a file.
    Raises UserError if a version without this file trained the policy with another prompt than today's default."""
    place = Path(policy)
    for folder in (place, place.parent) if place.name.startswith("checkpoint-") else (place,):
        if stored := read_json(folder / FILE, _Stored):
            return folder, stored
        if name := (read_json(folder / "provenance.json", dict[str, Any]) or {}).get("system_prompt"):
            if name == prompt_name(default := default_prompt(config.data.language, config.environment.has_tools)):
                return folder, _Stored(default)
            remedy = "set rollout.system_prompt to the text in its config.yaml, or to none"
            raise UserError(f"{folder} lacks {FILE}, because an older version trained this policy; {remedy}")
    return None


def default_prompt(language: str, has_tools: bool = True) -> str:
    """Return the system prompt for pretrained models: the task and the form of an answer."""
    return prompt_texts("policy", language)["system" if has_tools else "without_tools"].strip()


def prompt_name(text: str | None) -> str | None:
    """Return a short hash of a prompt, stored with every result; None without a prompt."""
    return text and hashlib.sha256(text.encode()).hexdigest()[:12]
