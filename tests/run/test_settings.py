from contextlib import nullcontext
from dataclasses import replace

import pytest
import yaml

from arenarl.config.load import config_to_yaml
from arenarl.config.schema import Config, RolloutConfig
from arenarl.run.settings import refuse_other_settings
from arenarl.system.errors import UserError


@pytest.fixture
def begun(tmp_path):
    """The folder of an RL stage that was begun with the default settings."""
    folder = tmp_path / "rl"
    folder.mkdir()
    (folder / "config.yaml").write_text(config_to_yaml(Config()))
    return folder


def test_a_run_that_lacked_memory_goes_on_with_smaller_batches(begun):
    config = Config()
    config.rl = replace(config.rl, micro_batch_size=2)
    config.rollout.batch_size, config.policy.gradient_checkpointing, config.judge.concurrency = 8, True, 4
    refuse_other_settings(config, begun)


def test_a_run_goes_on_with_another_watching_judge_or_without_one(begun):
    config = Config()
    config.judge.watch.noise, config.judge.watch_share = "none", 0.5
    refuse_other_settings(config, begun)
    config.judge.train.noise = "none"
    with pytest.raises(UserError, match=r"made with other settings \(judge\)"):
        refuse_other_settings(config, begun)


@pytest.mark.parametrize(("section", "key", "value"), [("rl", "beta", 0.5), ("rollout", "max_turns", 3), ("rl", "deepspeed", "ds_config.json")])
def test_a_run_does_not_go_on_with_what_would_change_its_policy(begun, section, key, value):
    config = Config()
    setattr(getattr(config, section), key, value)
    with pytest.raises(UserError, match=rf"made with other settings \({section}\)"):
        refuse_other_settings(config, begun)


@pytest.mark.parametrize("stop_at_valid", [None, 0.25])
@pytest.mark.parametrize(("section", "key", "value"), [("rollout", "max_turns", 3), ("rl", "subtasks", ["Search"])])
def test_sft_that_stops_at_a_share_of_valid_trajectories_goes_on_with_the_same_rollouts_only(tmp_path, stop_at_valid, section, key, value):
    config = Config()
    config.sft.stop_at_valid = stop_at_valid
    folder = tmp_path / "sft"
    folder.mkdir()
    (folder / "config.yaml").write_text(config_to_yaml(config))
    config.rl.learning_rate /= 2
    refuse_other_settings(config, folder)
    setattr(getattr(config, section), key, value)
    with pytest.raises(UserError, match=rf"made with other settings \({section}\)") if stop_at_valid else nullcontext():
        refuse_other_settings(config, folder)


def test_a_run_that_was_begun_before_a_key_existed_goes_on(begun):
    written = yaml.safe_load((begun / "config.yaml").read_text(encoding="utf-8"))
    del written["rl"]["advantage_ddof"], written["data"]
    (begun / "config.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    refuse_other_settings(Config(), begun)
    with pytest.raises(UserError, match="other settings"):
        refuse_other_settings(Config(data=replace(Config().data, seed=1)), begun)


def test_settings_that_this_version_does_not_know_are_named(begun):
    (begun / "config.yaml").write_text("rl: {swiftness: 3}", encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot be read now \(.*unknown key rl.swiftness"):
        refuse_other_settings(Config(), begun)


def test_sft_does_not_go_on_with_another_system_prompt(tmp_path):
    folder = tmp_path / "sft"
    folder.mkdir()
    (folder / "config.yaml").write_text(config_to_yaml(Config()))
    with pytest.raises(UserError, match=r"made with other settings \(rollout\)"):
        refuse_other_settings(Config(rollout=RolloutConfig(system_prompt="Be brief.")), folder)
