"""After any damage to any file of a run, the same command continues exactly, or ends with one line that says how."""

import os
import random
import re
import shutil
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest
from scripts import command_of

from arenarl.config.load import load_config
from arenarl.domains.environments import environment_maker
from arenarl.domains.prepared import split_hashes
from arenarl.rollout.instances import temporary_environment
from arenarl.rollout.scratch_policy import prepare_initial_policy
from arenarl.rollout.system_prompt import prompt_name, system_prompt
from arenarl.run.checkpoints import last_checkpoint
from arenarl.run.marks import policy_file
from arenarl.system.errors import explain
from arenarl.training.preflight import preflight, preflight_sft
from arenarl.training.sft_data import training_texts

SEED = int(os.environ.get("ARENARL_DAMAGE_SEED", 0))  # the kinds of damage
FINISHED = ("model.safetensors", "timing.json", "whole.json")  # what a run lacks that was killed before its end


def flip(content, rng):
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def other_digit(content, rng):
    digits = [match.start() for match in re.finditer(rb"\d", content)]
    place = rng.choice(digits or [0])
    return content[:place] + str((content[place] + 1) % 10).encode() + content[place + 1 :]


DAMAGE = {
    "deleted": lambda content, rng: None,
    "emptied": lambda content, rng: b"",
    "cut": lambda content, rng: content[: len(content) // 2],
    "flipped": flip,
    "other digit": other_digit,
    "longer": lambda content, rng: content + b"0",
    "binary": lambda content, rng: b"\xff\xfe\x00",
    "other JSON": lambda content, rng: rng.choice([b"[1]", b"{}", b"null", b'{"step": "1"}', b"7"]),
    "lines swapped": lambda content, rng: b"\n".join(content.split(b"\n")[::-1]),
}


def settings(**overrides):
    command = command_of("train_rl.py", **overrides)
    sets = [word for flag, word in zip(command, command[1:], strict=False) if flag == "--set"]
    return load_config(command[command.index("--config") + 1], sets)


def provenance(config, stage):
    return {"data_sha256": split_hashes(config.data.folder), "system_prompt": prompt_name(system_prompt(config, stage))}


def begin_rl():
    """Start RL up to its first step; return its folder and the policy that it starts from."""
    start = preflight(settings(), Namespace(check=False), provenance)
    return start.folder, Path(start.policy)


def begin_sft():
    """Start SFT up to the trainer; DeepSpeed would need a launcher."""
    config = settings()
    assert preflight_sft(config, Namespace(check=True), provenance) is None
    with temporary_environment(environment_maker(config.environment, config.data.language)) as environment:
        tools = environment.tools
    texts, folder = training_texts(Path(config.data.folder) / "sft.jsonl"), config.run_dir / "sft"
    return folder, Path(prepare_initial_policy(config.policy, folder / "initial", texts, tools, config.seed))


@pytest.fixture(params=["rl", "sft"])
def halfway(request, folder, tmp_path, monkeypatch):
    """A run that was killed at the end of RL or SFT, with its checkpoints; `pristine` is its copy."""
    monkeypatch.chdir(tmp_path)
    for name in ("data", "runs"):
        shutil.copytree(Path(f"{folder}-unbroken") / name, tmp_path / name)
    for name in FINISHED:
        (tmp_path / "runs" / "tiny" / request.param / name).unlink()
    unread = {"rl": ["evaluate", "sft/initial", "sft/checkpoint-*"], "sft": ["evaluate", "rl"]}[request.param]
    for path in [path for pattern in unread for path in (tmp_path / "runs" / "tiny").glob(pattern)]:
        shutil.rmtree(path)
    begin = {"rl": begin_rl, "sft": begin_sft}[request.param]
    begin()
    shutil.copytree(tmp_path, f"{tmp_path}-pristine", symlinks=True)
    (tmp_path / "pristine").symlink_to(f"{tmp_path}-pristine")
    return begin


def restore():
    for folder in Path().glob("runs/*/*/damaged-*"):
        shutil.rmtree(folder)
    for source in Path("pristine").resolve().rglob("*"):
        path = source.relative_to(Path("pristine").resolve())
        if source.is_file() and not (path.is_file() and path.stat().st_mtime_ns == source.stat().st_mtime_ns):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, path)


def is_exact(stage, policy, checkpoint):
    """True if all files that training would read now are those of the undamaged run."""
    pristine, splits = Path("pristine"), ["sft"] if stage.name == "sft" else ["rl_queries", "test_queries"]
    read = [path for path in (pristine / policy).iterdir() if policy_file(path.name)] + [
        *(pristine / "data" / f"{split}.jsonl" for split in splits)
    ]
    saved = (pristine / stage / checkpoint).rglob("*")  # DeepSpeed's states are in a folder of their own
    read += (path for path in saved if path.is_file() and path.name != "whole.json")
    return all(path.read_bytes() == path.relative_to(pristine).read_bytes() for path in read)


@pytest.mark.slow(seconds=20)
def test_after_any_damage_to_any_file_a_run_continues_exactly_or_says_what_to_do(halfway, monkeypatch, capsys):
    monkeypatch.setattr("arenarl.run.stage.fix_randomness", lambda _: None)
    rng, outcomes, escaped = random.Random(SEED), Counter(), []
    for path in [path for path in sorted(Path("pristine").resolve().rglob("*")) if path.is_file()]:
        path = path.relative_to(Path("pristine").resolve())
        kind = rng.choice(sorted(DAMAGE))
        restore()
        before = path.read_bytes()
        after = DAMAGE[kind](before, rng) if before else None
        path.unlink() if after is None else path.write_bytes(after)
        try:
            stage, policy = halfway()
            checkpoint = Path(last_checkpoint(stage)).name
        except Exception as error:
            outcomes["refused"] += 1
            line = explain(error) or f"{type(error)} {error}"
            if not re.match(r"error: [^\n]*(restore|delete|train|rerun|prepare|save it|README.md)[^\n]*$", line):
                escaped.append(f"{path} {kind}: {line}")
        else:
            outcomes[checkpoint] += 1
            if not is_exact(stage, policy, checkpoint):
                escaped.append(f"{path} {kind}: continues from {checkpoint} with other content")
    with capsys.disabled():
        print(f"\n{outcomes}")
    assert escaped == [], "\n".join(escaped)
    restore()
    stage, _ = halfway()
    checkpoints = {path.name for path in (Path("pristine") / stage).glob("checkpoint-*")}
    assert outcomes.keys() == {"refused"} | checkpoints  # each was resumed from, and some damage was refused
