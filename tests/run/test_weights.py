"""RL resumes, ends and is compared only with the SFT weights that it started from."""

import json
import os
import shutil
from dataclasses import asdict
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scripts import run

from arenarl.config.schema import Config, JudgeConfig, RewardConfig
from arenarl.run.marks import any_file, damage, policy_file, refuse_damaged_policy, write_mark
from arenarl.run.settings import has_begun
from arenarl.run.weights import hash_weights, refuse_cut_weights, refuse_other_start, refuse_other_starts, start_record
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError


def replace(path, value):
    """Replace the file by one with a later time stamp."""
    later = path.stat().st_mtime_ns + 10**9 if path.is_file() else None
    save_file({"w": torch.tensor([value])}, path)
    if later:
        os.utime(path, ns=(later, later))


def keep_start(folder, policy, config=None, **provenance):
    """Start RL in its folder as `start_stage` does."""
    config = config or Config()
    now = start_record(config, "rl", provenance, policy)
    if has_begun(folder):
        refuse_other_start(folder, config, now, is_finished=(folder / "timing.json").is_file())
    else:
        write_json(folder / "start.json", asdict(now))


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


@settings(max_examples=30)
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


@pytest.mark.parametrize(("name", "text"), [
    ("chat_template.jinja", "{{ messages }} "), ("tokenizer.json", "{}"), ("config.json", '{"rope_theta": 1}'),
])  # fmt: skip
def test_rl_does_not_resume_with_another_tokenizer_template_model_config_or_judge(places, name, text):
    sft, rl = places
    for file in ("chat_template.jinja", "tokenizer.json", "config.json"):
        (rl.parent / "sft" / file).write_text("{ }")
    keep_start(rl, sft, judge_train={"prompt": "a hash", "date": "2026-01-01"})
    (rl / "checkpoint-5").mkdir()
    keep_start(rl, sft, judge_train={"prompt": "a hash", "date": "2026-01-02"})
    with pytest.raises(UserError, match="other content of judge.train's prompts and rubric; restore it, delete"):
        keep_start(rl, sft, judge_train={"prompt": "another hash", "date": "2026-01-02"})
    (rl.parent / "sft" / name).write_text(text)
    with pytest.raises(UserError, match=f"was started with other content of .*sft/{name}; restore it, delete"):
        keep_start(rl, sft, judge_train={"prompt": "a hash"})


def test_rl_does_not_resume_with_other_prompts_or_query_rubrics_of_an_alternate_judge(places, tmp_path):
    sft, rl = places
    rubrics, config = tmp_path / "rubrics.jsonl", Config()
    rubrics.write_text("{}")
    config.judge.alternates = [JudgeConfig(), JudgeConfig(name="llm", model="m", query_rubrics=str(rubrics))]
    start = partial(keep_start, rl, sft, config, judge_train="embedded")
    start(judge_alternates=["embedded", {"prompt": "a hash"}])
    (rl / "checkpoint-5").mkdir()
    start(judge_alternates=["embedded", {"prompt": "a hash"}])
    with pytest.raises(UserError, match="other content of judge.alternates.1's prompts and rubric; restore it"):
        start(judge_alternates=["embedded", {"prompt": "another hash"}])
    rubrics.write_text("{ }")
    with pytest.raises(UserError, match="other content of .*rubrics.jsonl; restore it"):
        start(judge_alternates=["embedded", {"prompt": "a hash"}])
    record = json.loads((rl / "start.json").read_text())  # as earlier versions wrote it
    del record["data"]["judge.alternates.1's prompts and rubric"], record["data"][str(rubrics)]
    (rl / "start.json").write_text(json.dumps(record))
    start(judge_alternates=["embedded", {"prompt": "a hash"}])
    with pytest.raises(UserError, match="other content of prompts.folder's judge.yaml; restore it"):
        start(judge_alternates=["embedded", {"prompt": "a hash"}], prompts={"judge.yaml": "a hash"})


def test_a_change_of_own_code_is_reported_and_does_not_stop_rl(places, own_modules, capsys):
    sft, rl = places
    own_modules({"own_of_a_run.py": "def reward(query, trajectories, judge): return [1.0]\n"})
    config = Config(reward=RewardConfig(name="own_of_a_run:reward"))
    keep_start(rl, sft, config)
    (rl / "curve.jsonl").touch()
    keep_start(rl, sft, config)
    assert capsys.readouterr().out == ""
    own_modules({"own_of_a_run.py": "def reward(query, trajectories, judge): return [2.0]\n"})
    for _ in ("in progress", "finished"):
        keep_start(rl, sft, config)
        assert "earlier version of the code of own_of_a_run:reward; to train with the new" in capsys.readouterr().out
        (rl / "timing.json").touch()
    record = json.loads((rl / "start.json").read_text(encoding="utf-8"))
    del record["data"]["the code of own_of_a_run:reward"]  # a run that an earlier version started
    write_json(rl / "start.json", record)
    keep_start(rl, sft, config)
    assert capsys.readouterr().out == ""
    assert not any(name.startswith("the code of") for name in start_record(Config(), "rl", {}, sft).data)


@pytest.mark.parametrize("record", [None, '{"policy": "x", "weights": "y"}', "{", "[1]", '{"policy": 1}', "null"])
def test_work_with_an_unknown_start_is_refused_unless_it_is_finished(places, record, capsys):
    """Versions before start records stored the weights alone, or nothing."""
    sft, rl = places
    (rl / "checkpoint-5").mkdir()
    if record:
        (rl / "start.json").write_text(record)
    with pytest.raises(UserError, match="start.json.*; restore .*delete .*rl to restart the stage"):
        keep_start(rl, sft)
    for name in ("timing.json", "config.yaml"):
        (rl / name).write_text("{}")
    if record is None:
        keep_start(rl, sft)
        assert "has no start.json; only its settings are compared" in capsys.readouterr().out
    if record and "weights" in record:
        (rl / "start.json").write_text(json.dumps({"policy": sft, "weights": hash_weights(sft)}))
        keep_start(rl, sft)
        write_mark(rl, policy_file)  # this version trained the policy, so its record was damaged
        with pytest.raises(UserError, match="start.json of an earlier version.*; restore .*delete .*rl to restart"):
            keep_start(rl, sft)


def test_a_hub_id_stands_for_the_weights_of_its_revision(places, tmp_path, monkeypatch):
    _, rl = places
    assert hash_weights("Qwen/Qwen3-8B-Base") == "Qwen/Qwen3-8B-Base"
    keep_start(rl, "Qwen/Qwen3-8B-Base")
    keep_start(rl, "Qwen/Qwen3-8B-Base")
    refuse_other_starts(["Qwen/Qwen3-8B-Base", str(rl)])

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--Qwen--Qwen3-8B-Base"
    for revision in ("1", "2"):
        (model / "snapshots" / revision).mkdir(parents=True)
        (model / "snapshots" / revision / "config.json").write_text("{}")
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / "main").write_text(revision)
        if revision == "1":
            keep_start(rl, "Qwen/Qwen3-8B-Base")
            (rl / "checkpoint-5").mkdir()
            keep_start(rl, "Qwen/Qwen3-8B-Base")
    with pytest.raises(UserError, match="other content of Qwen/Qwen3-8B-Base/revision; restore it"):
        keep_start(rl, "Qwen/Qwen3-8B-Base")


def test_weights_that_are_cut_off_or_missing_are_refused(tmp_path):
    save_file({"w": torch.zeros(30)}, tmp_path / "model-1.safetensors")
    torch.save({"w": torch.zeros(30)}, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"metadata": {}, "weight_map": {"w": "model-1.safetensors"}}'
    )
    refuse_cut_weights(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        content = path.read_bytes()
        for length in [*range(0, len(content), 9), len(content) - 1]:
            path.write_bytes(content[:length])
            with pytest.raises(UserError, match=rf"{path.name} is damaged .*; restore it, download it again, or rerun"):
                refuse_cut_weights(tmp_path)
        path.write_bytes(content)
    (tmp_path / "model-1.safetensors").unlink()
    refuse_cut_weights(tmp_path, is_downloaded=True)
    with pytest.raises(UserError, match="index.json names model-1.safetensors, which does not exist; restore it"):
        refuse_cut_weights(tmp_path)


def test_weights_behind_a_link_without_a_target_are_refused(tmp_path):
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "deleted")
    refuse_cut_weights(tmp_path, is_downloaded=True)  # downloaded again
    with pytest.raises(UserError, match="model.safetensors is not a file, or a link to a file that does not exist"):
        refuse_cut_weights(tmp_path)


def test_a_checkpoint_or_policy_that_differs_from_its_mark_is_not_used(tmp_path):
    """Evaluation may load a checkpoint, which also holds optimizer states."""
    for name in ("model.safetensors", "optimizer.pt", "chat_template.jinja", "global_step5/states.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    for is_part, decisive in ((any_file, "global_step5/states.bin"), (policy_file, "tokenizer.json")):
        write_mark(tmp_path, is_part, step=5)
        refuse_damaged_policy(tmp_path)
        (tmp_path / "optimizer.pt").write_text("changed")  # not part of the policy
        refuse_damaged_policy(tmp_path)
        assert damage(tmp_path, is_part) == ("optimizer.pt was changed" if is_part is any_file else "")
        (tmp_path / decisive).write_text("changed")
        assert damage(tmp_path, is_part) != ""
    with pytest.raises(UserError, match="tokenizer.json does not belong there; restore it, or name another policy; if"):
        refuse_damaged_policy(tmp_path)


@pytest.mark.slow(seconds=12)
def test_after_sft_was_trained_again_rl_and_evaluation_are_refused(folder, tmp_path):
    for name in ("data", "runs"):
        shutil.copytree(folder / name, tmp_path / name)
    path = tmp_path / "runs" / "tiny" / "sft" / "model.safetensors"
    save_file({name: weight + 1 for name, weight in load_file(path).items()}, path, {"format": "pt"})
    done = run(tmp_path, "evaluate.py")
    assert done.returncode == 2 and "sft is not the policy that was trained: model.safetensors" in done.stderr
    (path.parent / "whole.json").unlink()
    for script, line in (("train_rl.py", "to train it from these"), ("evaluate.py", "so they cannot be compared")):
        done = run(tmp_path, script)
        assert done.returncode == 2 and line in done.stderr.strip().splitlines()[-1], done.stderr
