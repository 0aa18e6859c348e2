import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from operator import attrgetter

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.run.checkpoints import CheckpointMarker
from arenarl.run.stage import _lock, start_stage
from arenarl.run.timing import Stopwatch
from arenarl.run.weights import refuse_other_start, start_record
from arenarl.system.atomic_files import write_json
from arenarl.system.errors import UserError


@pytest.fixture
def begun(tmp_path):
    """The folder of an RL stage that was started with the default settings."""
    return begin(tmp_path / "rl", Config())


def begin(folder, config):
    (folder / "checkpoint-1").mkdir(parents=True)
    write_json(folder / "start.json", asdict(start_record(config, folder.name, {}, None)))
    return folder


def refuse_other_settings(config, folder):
    refuse_other_start(folder, config, start_record(config, folder.name, {}, None), is_finished=False)


def test_a_run_resumes_with_smaller_batches_another_watching_judge_or_more_checkpoints(begun):
    config = Config()
    config.rl = replace(config.rl, micro_batch_size=2, save_steps=1)
    config.rollout.batch_size, config.policy.gradient_checkpointing, config.judge.concurrency = 8, True, 4
    config.judge.watch.noise, config.judge.watch_share = "none", 0.5
    config.environment.server = "http://127.0.0.1:36001"
    refuse_other_settings(config, begun)


@pytest.mark.parametrize(("key", "value"), [
    ("rl.beta", 0.5), ("rollout.max_turns", 3), ("rl.deepspeed", "ds_config.json"), ("judge.train.noise", "none"),
])  # fmt: skip
def test_a_run_does_not_resume_with_settings_that_change_its_policy(begun, key, value):
    config = Config()
    section, _, name = key.rpartition(".")
    setattr(attrgetter(section)(config), name, value)
    with pytest.raises(UserError, match=rf"made with other settings \({key} \S+ → {value}\)"):
        refuse_other_settings(config, begun)


@pytest.mark.parametrize(("stop", "key", "value", "is_refused"), [
    (None, "rl.subtasks", ["Search"], False), (0.25, "rl.subtasks", ["Search"], True),
    (None, "rollout.max_turns", 3, False), (0.25, "rollout.max_turns", 3, True),
    (None, "sft.save_steps", 7, False), (0.25, "sft.save_steps", 7, True),
    (None, "rollout.system_prompt", "Be brief.", True),
])  # fmt: skip
def test_sft_resumes_with_other_rollouts_and_intervals_unless_it_may_stop_by_them(
    tmp_path, stop, key, value, is_refused
):
    config = Config()
    config.sft.stop_at_valid = stop
    folder = begin(tmp_path / "sft", config)
    config.rl.learning_rate /= 2
    refuse_other_settings(config, folder)
    section, _, name = key.partition(".")
    setattr(getattr(config, section), name, value)
    with pytest.raises(UserError, match=rf"made with other settings \({key} ") if is_refused else nullcontext():
        refuse_other_settings(config, folder)


def test_a_run_that_was_started_before_a_key_existed_resumes(begun):
    written = json.loads((begun / "start.json").read_text(encoding="utf-8"))
    del written["settings"]["rl"]["advantage_ddof"], written["settings"]["data"]
    write_json(begun / "start.json", written)
    refuse_other_settings(Config(), begun)
    with pytest.raises(UserError, match="other settings"):
        refuse_other_settings(Config(data=replace(Config().data, seed=1)), begun)


def test_the_first_three_keys_are_named_with_both_values(begun):
    config = Config(seed=3, rl=replace(Config().rl, steps=7, groups=2, beta=0.5))
    keys = r"\(seed 0 → 3, rl.steps 200 → 7, rl.groups 8 → 2 and 1 more\)"
    with pytest.raises(UserError, match=f"{keys}; delete it, or give this run another `name`"):
        refuse_other_settings(config, begun)


def test_a_resumed_trainer_uses_the_interval_of_its_config_not_of_the_checkpoint(tmp_path):
    state = TrainerState(save_steps=25, max_steps=100)
    CheckpointMarker(Stopwatch(tmp_path)).on_train_begin(
        TrainingArguments(str(tmp_path), save_steps=1, use_cpu=True), state, TrainerControl()
    )
    assert state.save_steps == 1 and state.max_steps == 100


@pytest.fixture
def light(tmp_path, monkeypatch):
    """Let `start_stage` run in an empty folder, many times, without torch's settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("arenarl.run.stage.fix_randomness", lambda _: None)
    monkeypatch.setattr("arenarl.run.stage._lock", lambda _: None)


@pytest.mark.parametrize(("stage", "changed", "part"), [
    ("sft", {"data_sha256": {"sft": "b", "rl_queries": "a"}}, "sft.jsonl"),
    ("rl", {"data_sha256": {"sft": "a", "rl_queries": "b"}}, "rl_queries.jsonl"),
    ("sft", {"data_sha256": {"sft": "a", "rl_queries": "b"}}, None),
    ("evaluate", {"data_sha256": {"rl_queries": "b"}}, None), ("rl", {"system_prompt": "other"}, "the system prompt"),
    ("rl", {}, None),
])  # fmt: skip
def test_a_stage_does_not_resume_with_other_rows_or_another_prompt(light, stage, changed, part):
    provenance = {"data_sha256": {"sft": "a", "rl_queries": "a"}, "system_prompt": "text"}
    folder = start_stage(Config(), stage, lambda *_: provenance)
    (folder / "initial").mkdir()
    assert start_stage(Config(), stage, lambda *_: provenance | changed) == folder  # it has taken no step
    assert (folder / "initial").exists() is (part is None)  # its tokenizer was trained on the rows
    start_stage(Config(), stage, lambda *_: provenance)
    (folder / "checkpoint-5").mkdir()
    if part is None:
        assert start_stage(Config(), stage, lambda *_: provenance | changed) == folder
        return
    with pytest.raises(UserError, match=f"was started with other content of {part}; restore it"):
        start_stage(Config(), stage, lambda *_: provenance | changed)
    assert json.loads((folder / "provenance.json").read_text()) == provenance


def test_a_folder_that_another_run_is_writing_is_refused(tmp_path):
    _lock(tmp_path)
    with pytest.raises(UserError, match="is being written by another run"):
        _lock(tmp_path)


@pytest.mark.parametrize("work", ["checkpoint-1", "model.safetensors", "curve.jsonl", "groups.jsonl", "round1"])
def test_a_stage_restarts_with_corrected_settings_only_if_it_took_no_step(light, work):
    """A check, a typo in a user's reward, or a kill before the first step must not spoil the folder."""
    for stage in ("sft", "rl"):
        folder = start_stage(Config(), stage, lambda *_: {})
        for name in ("wandb.json", "initial/tokenizer.json"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).touch()
        start_stage(Config(), stage, lambda *_: {})
        assert (folder / "wandb.json").is_file() and (folder / "initial").is_dir()
        corrected = Config(threads=2)
        assert start_stage(corrected, stage, lambda *_: {}, "Qwen/Qwen3-8B") == folder
        assert load_config(folder / "config.yaml") == corrected
        assert not (folder / "wandb.json").exists() and not (folder / "initial").exists()
        (folder / "start.json").write_text("{", encoding="utf-8")
        start_stage(corrected, stage, lambda *_: {}, "Qwen/Qwen3-4B")
        (folder / work).touch()
        start_stage(corrected, stage, lambda *_: {}, "Qwen/Qwen3-4B")
        with pytest.raises(UserError, match="threads 2 → 1"):
            start_stage(Config(), stage, lambda *_: {}, "Qwen/Qwen3-4B")
        with pytest.raises(UserError, match="trained from other weights"):
            start_stage(corrected, stage, lambda *_: {}, "Qwen/Qwen3-8B")
        (folder / "start.json").unlink()
        with pytest.raises(
            UserError, match="has no start.json, so its work .* restore the file, .* delete .* to restart"
        ):
            start_stage(corrected, stage, lambda *_: {}, "Qwen/Qwen3-4B")


def test_a_setting_that_this_version_does_not_know_is_named(begun):
    written = json.loads((begun / "start.json").read_text(encoding="utf-8"))
    write_json(begun / "start.json", written | {"settings": {"rl": {"swiftness": 3}}})
    with pytest.raises(UserError, match=r"this version cannot read: .*unknown key rl.swiftness"):
        refuse_other_settings(Config(), begun)
