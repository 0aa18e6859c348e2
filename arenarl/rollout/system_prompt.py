"""What a policy is told before the query, and how an answer looks: `rollout.system_prompt`, the same in SFT, RL,
difficulty and evaluation.

One that is built from scratch has no use for it: SFT teaches it the form, in a fraction of the tokens. Of a model of
somebody's it is all that makes answers valid before SFT, or without it. Not in the papers; our choice.

SFT and RL write their system prompt beside the weights (`system_prompt.json`). Later stages read it there. A model
folder without that file is a model of somebody's.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arenarl.config.schema import Config
from arenarl.llm.prompts import prompt_texts
from arenarl.system.atomic_files import read_json, write_json
from arenarl.system.errors import UserError
from arenarl.system.progress import is_main_process, say
from arenarl.system.user_input import text_of_file

FILE = "system_prompt.json"
SHOWN = 60  # characters of a prompt in a line


def system_prompt(config: Config, stage: str = "rl") -> str | None:
    """The system message of all prompts of a policy whose weights are here; None for none. Without
    `rollout.system_prompt` it is what the policy that `stage` starts from was told: for `sft` that is `policy.model`,
    for all that comes later what RL starts from.

    Raises:
        UserError: the file that the key names cannot be read, or is empty; or an older version trained the policy with
            a system prompt that it did not keep.
    """
    return _resolve(config, stage)[0]


def keep_system_prompt(config: Config, folder: Path, stage: str) -> None:
    """Write a stage's system prompt beside the weights that it trains, and print it where the config does not say it.
    Only the main process does either."""
    text, origin = _resolve(config, stage)
    if is_main_process():
        write_json(folder / FILE, {"system_prompt": text})
    _say(text, origin)


def say_prompts(config: Config, policies: Mapping[str, str]) -> None:
    """Print what all policies to be evaluated are told, folders by name,
    and a line for each that was trained with another prompt."""
    text, origin = _resolve(config, "rl")
    if policies:
        _say(text, origin)
    for name, policy in policies.items():
        try:
            kept = _kept(policy, config)
        except UserError as error:  # what all policies are told here does not depend on it
            say(f"{name}: {error}")
            continue
        if kept and (own := kept[1]["system_prompt"]) != text:
            told = f"than it is told here ({shown(text)}); evaluate it by its own config"
            say(f"{name} was trained with another system prompt ({shown(own)}) {told}")


def shown(text: str | None) -> str:
    """A prompt as a part of a line."""
    line = " ".join(text.split()) if text else "none"
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"


def _say(text: str | None, origin: str) -> None:
    if origin:
        say(f"system prompt, {origin}: {shown(text)}; rollout.system_prompt sets another")


def _resolve(config: Config, stage: str) -> tuple[str | None, str]:
    """The text, and where it comes from; "" where that is the config, or nothing is told to a policy from scratch."""
    text, path = config.rollout.system_prompt, config.rollout.system_prompt_file
    if path and not (text := text_of_file(path).strip()):
        raise UserError(f"rollout.system_prompt: {path} is empty; write none for no system prompt")
    if text is not None:
        return None if text == "none" and not path else text.strip(), ""
    model, starts = config.policy.model, [config.policy.model]
    if stage != "sft":
        model, starts = config.rl.init or model, [config.sft_policy, None if config.rl.init else model]
    for start in filter(None, starts):
        if kept := _kept(start, config):
            folder, text = kept[0], kept[1]["system_prompt"]
            return text, f"as in {folder}" if text or model else ""
    if model:
        return default_prompt(config.data.language, config.environment.has_tools), "our default"
    return None, ""


def _kept(policy: str, config: Config) -> tuple[Path, dict[str, Any]] | None:
    """Return the folder that holds the file, and its content, for a policy or one of its checkpoints; None without one.

    Raises:
        UserError: a version that did not write the file trained the policy, with another system prompt than today's.
    """
    place = Path(policy)
    for folder in (place, place.parent) if place.name.startswith("checkpoint-") else (place,):
        if kept := read_json(folder / FILE):
            return folder, kept
        if name := (read_json(folder / "provenance.json") or {}).get("system_prompt"):
            if name == prompt_name(default := default_prompt(config.data.language, config.environment.has_tools)):
                return folder, {"system_prompt": default}
            raise UserError(
                f"{folder} lacks {FILE}, for an older version trained this policy; set rollout.system_prompt to the "
                "text that it was trained with (see its config.yaml), or to none"
            )
    return None


def default_prompt(language: str, has_tools: bool = True) -> str:
    """What a model that is not ours is told of its task and of the form of an answer."""
    return prompt_texts("policy", language)["system" if has_tools else "without_tools"].strip()


def prompt_name(text: str | None) -> str | None:
    """A hash of it; kept with every result."""
    return text and hashlib.sha256(text.encode()).hexdigest()[:12]
