"""What a policy is told before the query, and how an answer looks: `rollout.system_prompt`, the same in SFT, RL, difficulty and evaluation.

One that is built from scratch has no use for it: SFT teaches it the form, in a fraction of the tokens. Of a model of somebody's it is all
that makes answers valid before SFT, or without it. Not in the papers; our choice.
"""

import hashlib

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
        return default_prompt(config.data.language) if config.policy.model or config.rl.init else None
    if path and not (text := text_of_file(path).strip()):
        raise UserError(f"rollout.system_prompt: {path} is empty; write none for no system prompt")
    return text if path else None if said == "none" else said.strip()


def default_prompt(language: str) -> str:
    """What a model that is not ours is told of its task and of the form of an answer."""
    return prompt_texts("policy", language)["system"].strip()


def prompt_name(text: str | None) -> str | None:
    """A hash of it; kept with every result."""
    return text and hashlib.sha256(text.encode()).hexdigest()[:12]
