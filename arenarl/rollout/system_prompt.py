"""What a policy is told before the query, and how an answer looks: `rollout.system_prompt`, the same in SFT, RL,
difficulty and evaluation.

One that is built from scratch has no use for it: SFT teaches it the form, in a fraction of the tokens. Of a model of
somebody's it is all that makes answers valid before SFT, or without it. Not in the papers; our choice.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.llm.prompts import prompt_texts
from arenarl.system.atomic_files import read_json
from arenarl.system.errors import UserError
from arenarl.system.progress import say
from arenarl.system.user_input import text_of_file

SHOWN = 60  # characters of a prompt in a line


def system_prompt(config: Config, stage: str = "rl") -> str | None:
    """The system message of all prompts of a policy whose weights are here; None for none. Without
    `rollout.system_prompt` it is what the policy that `stage` starts from was told: for `sft` that is `policy.model`,
    for all that comes later what RL starts from.

    Raises:
        UserError: the file that the key names cannot be read, or is empty;
            or what the policy was told cannot be found out.
    """
    return _told(config, stage)[0]


def say_system_prompt(config: Config, stage: str = "rl") -> None:
    """A line for who is told what the config does not say."""
    text, origin = _told(config, stage)
    if origin:
        say(f"system prompt, {origin}: {shown(text)}; rollout.system_prompt sets another")


def say_prompts(config: Config, policies: Mapping[str, str]) -> None:
    """What all policies to be evaluated are told, folders by name,
    and a line for each that a stage of ours trained with another prompt."""
    if policies:
        say_system_prompt(config)
    text = system_prompt(config)
    for name, policy in policies.items():
        folder = _folder_of_stage(policy)
        try:
            own = _told_in(folder, ()) if folder else text
        except UserError as error:
            # of a version whose keys are not known any more; what all are told here does not depend on it
            say(f"{name}: {error}")
            continue
        if own != text:
            say(
                f"{name} was trained with another system prompt ({shown(own)}) than it is told here ({shown(text)}); "
                "evaluate it by its own config"
            )
        elif folder and read_json(folder / "provenance.json").get("system_prompt", prompt_name(own)) != prompt_name(
            own
        ):
            say(
                f"{name} was trained with another system prompt than its file has now, "
                f"which it is told here ({shown(text)})"
            )


def shown(text: str | None) -> str:
    line = " ".join(text.split()) if text else "none"
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"


def _told(config: Config, stage: str, asked: tuple[Path, ...] = ()) -> tuple[str | None, str]:
    """The text, and who says so; "" where that is the config, or nothing is told to a policy from scratch."""
    said, path = config.rollout.system_prompt, config.rollout.system_prompt_file
    if path and not (text := text_of_file(path).strip()):
        raise UserError(f"rollout.system_prompt: {path} is empty; write none for no system prompt")
    if said is not None:
        return text if path else None if said == "none" else said.strip(), ""
    init = None if stage == "sft" else config.rl.init
    trained = None if stage == "sft" else config.sft_policy
    for start in filter(None, (trained, None if init else config.policy.model)):
        folder = _folder_of_stage(start)
        if folder and folder.resolve() not in asked:
            text = _told_in(folder, asked)
            return text, f"as in {folder}" if text or init or config.policy.model else ""
    if init or config.policy.model:
        return default_prompt(config.data.language, config.environment.has_tools), "our default"
    return None, ""


def _told_in(folder: Path, asked: tuple[Path, ...]) -> str | None:
    """What a stage of ours told the policy that it trained. One that names itself as its start is not asked again."""
    stage = "rl" if folder.name == "rl" or (folder / "start.json").is_file() else "sft"
    try:
        return _told(load_config(folder / "config.yaml"), stage, (*asked, folder.resolve()))[0]
    except UserError as error:
        raise UserError(
            f"what {folder} told its policy cannot be found out ({error}); set "
            "rollout.system_prompt, to none for no prompt"
        ) from error


def _folder_of_stage(policy: str) -> Path | None:
    """The folder of the stage of ours that wrote the policy, which may be one of its checkpoints; None if none did."""
    place = Path(policy)
    folders = (place, place.parent) if place.name.startswith("checkpoint-") else (place,)
    return next((folder for folder in folders if (folder / "provenance.json").is_file()), None)


def default_prompt(language: str, has_tools: bool = True) -> str:
    """What a model that is not ours is told of its task and of the form of an answer."""
    return prompt_texts("policy", language)["system" if has_tools else "without_tools"].strip()


def prompt_name(text: str | None) -> str | None:
    """A hash of it; kept with every result."""
    return text and hashlib.sha256(text.encode()).hexdigest()[:12]
