import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from operator import attrgetter

import pytest
from scripts import BEING_WRITTEN, locked_by_another
from transformers import TrainerControl, TrainerState, TrainingArguments

from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.run.checkpoints import CheckpointMarker
from arenarl.run.stage import start_stage
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


@pytest.mark.parametrize(("changes", "named"), [
    ({"rl.beta": 0.5}, r"rl.beta \S+ → 0.5"), ({"rollout.max_turns": 3}, r"rollout.max_turns \S+ → 3"),
    ({"rl.deepspeed": "ds_config.json"}, r"rl.deepspeed \S+ → ds_config.json"),
    ({"judge.train.noise": "none"}, r"judge.train.noise \S+ → none"),
    ({"seed": 3, "rl.steps": 7, "rl.groups": 2, "rl.beta": 0.5},
     "seed 0 → 3, rl.steps 200 → 7, rl.groups 8 → 2 and 1 more"),
])  # fmt: skip
def test_a_run_does_not_resume_with_settings_that_change_its_policy(begun, changes, named):
    config = Config()
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        setattr(attrgetter(section)(config) if section else config, name, value)
    with pytest.raises(UserError, match=rf"\({named}\); delete it, or give this run another `name`"):
        refuse_other_settings(config, begun)


@pytest.mark.parametrize(("key", "value", "is_always_refused"), [
    ("rl.subtasks", ["Search"], False), ("rollout.max_turns", 3, False), ("sft.save_steps", 7, False),
    ("rollout.system_prompt", "Be brief.", True),
])  # fmt: skip
@pytest.mark.parametrize("stop", [None, 0.25])
def test_sft_resumes_with_other_rollouts_and_intervals_unless_it_may_stop_by_them(
    tmp_path, stop, key, value, is_always_refused
):
    config = Config()
    config.sft.stop_at_valid = stop
    folder = begin(tmp_path / "sft", config)
    config.rl.learning_rate /= 2
    config.rl.difficulty.filter = True
    refuse_other_settings(config, folder)
    section, _, name = key.partition(".")
    setattr(getattr(config, section), name, value)
    refused = pytest.raises(UserError, match=rf"made with other settings \({key} ")
    with refused if stop or is_always_refused else nullcontext():
        refuse_other_settings(config, folder)


def test_a_run_that_was_started_before_a_key_existed_resumes_and_an_unknown_key_is_named(begun):
    written = json.loads((begun / "start.json").read_text(encoding="utf-8"))
    del written["settings"]["rl"]["advantage_ddof"], written["settings"]["data"]
    write_json(begun / "start.json", written)
    refuse_other_settings(Config(), begun)
    with pytest.raises(UserError, match="other settings"):
        refuse_other_settings(Config(data=replace(Config().data, seed=1)), begun)
    write_json(begun / "start.json", written | {"settings": {"rl": {"swiftness": 3}}})
    with pytest.raises(UserError, match=r"this version cannot read: .*unknown key rl.swiftness"):
        refuse_other_settings(Config(), begun)


def test_a_resumed_trainer_uses_the_interval_of_its_config_not_of_the_checkpoint(tmp_path):
    state = TrainerState(save_steps=25, max_steps=100)
    CheckpointMarker(Stopwatch(tmp_path)).on_train_begin(
        TrainingArguments(str(tmp_path), save_steps=1, use_cpu=True), state, TrainerControl()
    )
    assert state.save_steps == 1 and state.max_steps == 100


@pytest.fixture
def light(tmp_path, monkeypatch):
    """Let `start_stage` run in an empty folder, without torch's settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("arenarl.run.stage.fix_randomness", lambda _: None)


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


def test_a_folder_that_another_run_is_writing_is_refused(light, tmp_path):
    with locked_by_another(tmp_path / "runs" / "run" / "rl"), pytest.raises(UserError, match=BEING_WRITTEN):
        start_stage(Config(), "rl", lambda *_: {})
    start_stage(Config(), "rl", lambda *_: {})


@pytest.mark.parametrize("work", ["checkpoint-1", "model.safetensors", "curve.jsonl", "groups.jsonl", "round1"])
@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_a_stage_restarts_with_corrected_settings_only_if_it_took_no_step(light, stage, work):
    """A check, a typo in a user's reward, or a kill before the first step must not spoil the folder."""

    def restart(config, policy=None):
        return start_stage(config, stage, lambda *_: {}, policy)

    folder, corrected = restart(Config()), Config(threads=2)
    for name in ("wandb.json", "initial/tokenizer.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    restart(Config())
    assert (folder / "wandb.json").is_file() and (folder / "initial").is_dir()
    assert restart(corrected, "Qwen/Qwen3-8B") == folder and load_config(folder / "config.yaml") == corrected
    assert not (folder / "wandb.json").exists() and not (folder / "initial").exists()
    (folder / "start.json").write_text("{", encoding="utf-8")
    restart(corrected, "Qwen/Qwen3-4B")
    (folder / work).touch()
    restart(corrected, "Qwen/Qwen3-4B")
    with pytest.raises(UserError, match="threads 2 → 1"):
        restart(Config(), "Qwen/Qwen3-4B")
    with pytest.raises(UserError, match="trained from other weights"):
        restart(corrected, "Qwen/Qwen3-8B")
    (folder / "start.json").unlink()
    with pytest.raises(UserError, match="has no start.json, so its work .* restore the file, .* delete .* to restart"):
        restart(corrected, "Qwen/Qwen3-4B")
