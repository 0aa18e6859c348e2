"""ScalingInter-RL's turn schedule: the horizon of each optimizer step."""

import pytest

from arenarl.config.load import load_config
from arenarl.config.schema import Config
from arenarl.config.turn_schedule import turn_schedule


def test_a_stage_lasts_until_the_next_begins_and_without_a_schedule_all_steps_have_all_turns():
    schedule = turn_schedule([2, 4, 8], 3, max_turns=8, steps=12)
    assert [schedule.at(step) for step in range(12)] == [2, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8]
    assert {Config().turns.at(step) for step in range(300)} == {Config().rollout.max_turns}


@pytest.mark.parametrize(
    ("steps", "horizons"), [(9, [2, 2, 2, 4, 4, 4, 8, 8, 8]), (8, [2, 2, 4, 4, 8, 8, 8, 8]), (3, [2, 4, 8])]
)
def test_without_a_length_the_stages_share_the_steps_and_the_last_has_the_remainder(steps, horizons):
    schedule = turn_schedule([2, 4, 8], None, max_turns=8, steps=steps)
    assert [schedule.at(step) for step in range(steps)] == horizons


def test_the_short_long_and_scaling_configs_differ_only_in_their_turns():
    horizons, configs = {"short": [3] * 6, "long": [8] * 6, "scaling": [3, 3, 5, 5, 8, 8]}, []
    for name, expected in horizons.items():
        configs.append(config := load_config(f"configs/methods/{name}_turns.yaml"))
        assert [config.turns.at(step) for step in (0, 49, 50, 99, 100, 149)] == expected
        assert config.sft_policy == "runs/quickstart/sft" and config.test_turns == 8
        config.name, config.rollout.turn_schedule, config.rollout.turns_every = "", None, None
    assert configs[0] == configs[1] == configs[2]
