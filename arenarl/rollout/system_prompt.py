"""What a policy is told before the query, and how an answer looks: `rollout.system_prompt`, the same in SFT, RL, difficulty and evaluation.

One that is built from scratch has no use for it: SFT teaches it the form, in a fraction of the tokens. Of a model of somebody's it is all
that makes answers valid before SFT, or without it. Not in the papers; our choice.
"""

import hashlib
from pathlib import Path

from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.llm.prompts import prompt_texts
from arenarl.system.errors import UserError
from arenarl.system.text_files import text_of_file


def system_prompt(config: Config) -> str | None:
    """The system message of all prompts of a policy whose weights are here; None for none.

    Raises:
        UserError: the file that the key names cannot be read, or is empty.
    """
    said, path = config.rollout.system_prompt, config.rollout.system_prompt_file
    if said is None:
        return _told_so_far(config)
    if path and not (text := text_of_file(path).strip()):
        raise UserError(f"rollout.system_prompt: {path} is empty; write none for no system prompt")
    return text if path else None if said == "none" else said.strip()


def _told_so_far(config: Config) -> str | None:
    """What a start that a stage of ours trained was told there; the default for any other model, nothing for a policy from scratch."""
    start = Path(config.rl.init or config.policy.model or "")
    if (start / "provenance.json").is_file():
        return system_prompt(load_config(start / "config.yaml"))
    return default_prompt(config.data.language, config.environment.has_tools) if config.rl.init or config.policy.model else None


def default_prompt(language: str, has_tools: bool = True) -> str:
    """What a model that is not ours is told of its task and of the form of an answer."""
    return prompt_texts("policy", language)["system" if has_tools else "without_tools"].strip()


def prompt_name(text: str | None) -> str | None:
    """A hash of it; kept with every result."""
    return text and hashlib.sha256(text.encode()).hexdigest()[:12]
