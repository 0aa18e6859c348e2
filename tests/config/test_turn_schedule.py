"""ScalingInter-RL's turn schedule: the horizon of each optimizer step, and invalid schedules."""

import pytest

from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.config.turn_schedule import turn_schedule
from arenarl.system.errors import UserError


def test_a_stage_begins_at_its_boundary_and_lasts_until_the_next():
    schedule = turn_schedule([2, 4, 8], 3, max_turns=8, steps=12)
    assert [schedule.at(step) for step in range(12)] == [2, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8]


@pytest.mark.parametrize(
    ("steps", "horizons"), [(9, [2, 2, 2, 4, 4, 4, 8, 8, 8]), (8, [2, 2, 4, 4, 8, 8, 8, 8]), (3, [2, 4, 8])]
)
def test_without_a_length_the_stages_share_the_steps_and_the_last_has_the_remainder(steps, horizons):
    schedule = turn_schedule([2, 4, 8], None, max_turns=8, steps=steps)
    assert [schedule.at(step) for step in range(steps)] == horizons


def test_without_a_schedule_all_steps_have_all_turns():
    assert {Config().turns.at(step) for step in range(300)} == {Config().rollout.max_turns}


@pytest.mark.parametrize(("overrides", "part"), [
    (["rollout.turn_schedule=[]"], "rollout.turn_schedule=[]: must name horizons"),
    (["rollout.turn_schedule=[0,2]"], "rollout.turn_schedule.0=0: must be above 0"),
    (["rollout.turn_schedule=[2,2,4]"], "each larger than the one before"),
    (["rollout.turn_schedule=[4,2]"], "each larger than the one before"),
    (["rollout.turn_schedule=[2,13]"], "13 is above max_turns=12"),
    (["rollout.turn_schedule=[2,4]", "rollout.turns_every=0"], "rollout.turns_every=0: must be above 0"),
    (["rollout.turns_every=5"], "rollout.turns_every=5 needs stages"),
    (["rollout.turn_schedule=[2,4,8]", "rollout.turns_every=50", "rl.steps=100"], "begin at step 100, but the run"),
    (["rollout.turn_schedule=[2,4,8]", "rl.steps=2"], "would begin at step 2, but the run ends at rl.steps=2"),
    (["evaluate.max_turns=[]"], "evaluate.max_turns=[]"), (["evaluate.max_turns=[8,2]"], "larger than the one before"),
    (["evaluate.max_turns=[0,2]"], "evaluate.max_turns.0=0: must be above 0"),
    (["evaluate.samples=0"], "evaluate.samples=0: must be above 0"),
    (["evaluate.samples=2", "evaluate.decodings=[greedy]"], "add sampled to evaluate.decodings"),
    (["evaluate.decodings=[greedy, greedy]"], "names one twice, so its figures would count twice; leave"),
])  # fmt: skip
def test_an_invalid_schedule_is_refused_in_one_line(tmp_path, overrides, part):
    (tmp_path / "run.yaml").write_text("")
    with pytest.raises(UserError) as caught:
        load_config(tmp_path / "run.yaml", overrides)
    assert part in str(caught.value) and "\n" not in str(caught.value)


def test_the_short_long_and_scaling_configs_differ_only_in_their_turns():
    horizons, configs = {"short": [3] * 6, "long": [8] * 6, "scaling": [3, 3, 5, 5, 8, 8]}, []
    for name, expected in horizons.items():
        configs.append(config := load_config(f"configs/methods/{name}_turns.yaml"))
        assert [config.turns.at(step) for step in (0, 49, 50, 99, 100, 149)] == expected
        assert config.sft_policy == "runs/quickstart/sft" and config.test_turns == 8
        config.name, config.rollout.turn_schedule, config.rollout.turns_every = "", None, None
    assert configs[0] == configs[1] == configs[2]
