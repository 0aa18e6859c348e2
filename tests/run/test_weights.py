"""RL resumes, ends and is compared only with the SFT weights that it started from."""

import os
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scripts import run

from arenarl.run.weights import hash_weights, keep_start, refuse_other_starts
from arenarl.system.errors import UserError


def replace(path, value):
    """Replace the file by one with a later time stamp."""
    later = path.stat().st_mtime_ns + 10**9 if path.is_file() else None
    save_file({"w": torch.tensor([value])}, path)
    if later:
        os.utime(path, ns=(later, later))


def save(folder, *values):
    folder.mkdir(parents=True, exist_ok=True)
    for number, value in enumerate(values):
        replace(folder / f"model-{number}.safetensors", value)
    return str(folder)


@pytest.fixture
def places(tmp_path):
    """The folders of the SFT policy and of RL, which starts from it."""
    (tmp_path / "rl").mkdir()
    return save(tmp_path / "sft", 1.0, 2.0), tmp_path / "rl"


def test_rl_resumes_from_copies_of_the_same_weights(places):
    sft, rl = places
    keep_start(rl, sft)
    save(rl.parent / "sft", 1.0, 2.0)
    (rl.parent / "sft" / "training_args.bin").write_text("of the trainer, written differently every time")
    os.utime(rl.parent / "sft" / "model-0.safetensors", (0, 0))
    keep_start(rl, sft)
    refuse_other_starts([sft, str(rl)])


@settings(derandomize=True, deadline=None, max_examples=30)
@given(value=st.floats(width=32, allow_nan=False), shard=st.integers(0, 1), is_finished=st.booleans())
def test_other_weights_are_refused_for_running_and_finished_rl_and_in_comparisons(
    tmp_path_factory, value, shard, is_finished
):
    root = tmp_path_factory.mktemp("retrained")
    sft, rl = save(root / "sft", 1.0, 2.0), root / "rl"
    rl.mkdir()
    keep_start(rl, sft)
    (rl / "checkpoint-1").mkdir()
    if is_finished:
        save(rl, 3.0)
        (rl / "timing.json").write_text("{}")
    before = load_file(root / "sft" / f"model-{shard}.safetensors")["w"].item()
    replace(root / "sft" / f"model-{shard}.safetensors", value)
    if torch.tensor([value]).view(torch.int32).equal(torch.tensor([before]).view(torch.int32)):
        keep_start(rl, sft)
        return
    other = "rl was trained from other weights than .*sft has now"
    with pytest.raises(UserError, match=f"{other}; delete .*rl to train it from these"):
        keep_start(rl, sft)
    with pytest.raises(UserError, match=f"{other}, so they cannot be compared"):
        refuse_other_starts([str(rl), sft])
    refuse_other_starts([str(rl)])  # a single policy is not compared


def test_rl_that_started_before_hashes_were_stored_resumes(places):
    sft, rl = places
    (rl / "checkpoint-5").mkdir()
    keep_start(rl, sft)
    assert not (rl / "start.json").exists()
    refuse_other_starts([sft, str(rl)])


def test_a_hub_id_stands_for_its_weights(places):
    _, rl = places
    assert hash_weights("Qwen/Qwen3-8B-Base") == "Qwen/Qwen3-8B-Base"
    keep_start(rl, "Qwen/Qwen3-8B-Base")
    keep_start(rl, "Qwen/Qwen3-8B-Base")
    refuse_other_starts(["Qwen/Qwen3-8B-Base", str(rl)])


@pytest.mark.slow(seconds=15)
def test_after_sft_was_trained_again_rl_and_evaluation_are_refused(folder, tmp_path):
    for name in ("data", "runs"):
        shutil.copytree(folder / name, tmp_path / name)
    path = tmp_path / "runs" / "tiny" / "sft" / "model.safetensors"
    save_file({name: weight + 1 for name, weight in load_file(path).items()}, path, {"format": "pt"})
    for script, line in (("train_rl.py", "to train it from these"), ("evaluate.py", "so they cannot be compared")):
        done = run(tmp_path, script)
        assert done.returncode == 2 and line in done.stderr.strip().splitlines()[-1], done.stderr
