"""RL in worlds with a state, some of which die: TRL's trainer takes steps,
and what it is rewarded by is what the worlds gave."""

import math

import pytest
from parts import KeptSteps, arena_of
from worlds import Counter, mortal

from arenarl.config.schema import Config
from arenarl.judges.judge import Verdict
from arenarl.llm.client import RunStopped
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.generation import GeneratedTurn
from arenarl.training.trl_adapter import make_trainer
from arenarl.training.validity import RewardWatch
from arenarl.trajectory import Query, RolloutGroup, Trajectory

QUERIES = [
    Query(f"c{number}", "counter", "small", "en", "Reach the goal.", {"goal": 1 + number % 3}) for number in range(6)
]


def config_of(**rl):
    config = Config()
    config.policy.dtype, config.wandb.mode, config.reward.name = "float32", "disabled", "environment"
    config.rollout.group_size, config.rollout.max_tokens, config.rollout.max_turns = 4, 400, 4
    for key, value in rl.items():
        setattr(config.rl, key, value)
    return config


class Playing:
    """A policy that moves the counter by its seed, mostly up."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    async def generate(self, request):
        action = "down" if request.seed % 4 == 0 else "up"
        text = (
            f'<think>\nmove\n</think>\n\n<tool_call>\n{{"name": "act", "arguments": '
            f'{{"action": "{action}"}}}}\n</tool_call>'
        )
        return GeneratedTurn([*self.tokenizer.encode(text), self.tokenizer.eos_token_id])


@pytest.mark.slow(seconds=12)
def test_rl_goes_on_in_worlds_of_which_every_tenth_call_dies(policy_path, tokenizer, tmp_path, capfd):
    world = mortal(0.1, type("Fresh", (Counter,), {"made": 0, "closed": 0}))
    config = config_of(steps=10, groups=2, micro_batch_size=8, eval_steps=1, learning_rate=1e-4)
    engine = RolloutEngine(Playing(tokenizer), tokenizer, world, config.rollout, schemas_in_prompt=False)
    arena = arena_of(config, None)
    steps = KeptSteps(config, QUERIES, engine, arena, None, tmp_path)
    trainer = make_trainer(config, policy_path, QUERIES, steps)
    trainer.train()
    kept = [pair for step in zip(steps.all_groups, steps.all_outcomes, strict=True) for pair in zip(*step, strict=True)]
    assert trainer.state.global_step == 10 and len(kept) == 20
    assert world.made == world.closed and world.deaths > 4
    trajectories = [one for group, _ in kept for one in group.trajectories]
    again, void = (
        [one for one in trajectories if "begun_again" in one.meta],
        [one for one in trajectories if one.is_void],
    )
    assert again and void and len(void) < len(again)
    for group, outcome in kept:
        for one, reward in zip(group.trajectories, outcome.rewards_G, strict=True):
            assert reward == (None if one.is_void else one.meta["reward"])
            if not one.is_void:  # what the counter's moves come to, worked out from what it was shown
                steps = [message["content"] for message in one.messages if message["role"] == "tool"]
                assert reward == pytest.approx(0.1 * len(steps) + (one.stop_reason == "done"))
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert all(math.isfinite(entry["loss"]) for entry in logged) and any(
        entry["rollout/begun_again"] > 0 for entry in logged
    )
    assert sum(entry["rollout/tool_crash_rate"] for entry in logged) * 8 == pytest.approx(len(void))


def test_equal_outcomes_are_ranked_by_the_tournament_where_the_key_says_so():
    class Longest:
        async def compare(self, query, first, second, repeat=0):
            return Verdict(
                tuple({"x": float(len(one.messages))} for one in (first, second)), lambda dimensions: dimensions["x"]
            )

    def group(*rewards):
        messages = [{"role": "assistant", "content": "<answer>\nx\n</answer>", "reasoning_content": ""}]
        return RolloutGroup(
            QUERIES[0],
            [Trajectory("c0", messages * (1 + row), "done", meta={"reward": one}) for row, one in enumerate(rewards)],
        )

    config = config_of()
    for is_switched in (False, True):
        config.reward.tournament_if_equal = is_switched
        groups = [group(1.0, 1.0, 1.0), group(0.0, 1.0, 0.5), group(0.1 + 0.2, 0.3, 0.3)]
        equal, unequal, noise = arena_of(config, Longest()).reward_groups(groups)
        assert unequal.rewards_G == [0.0, 1.0, 0.5] and unequal.judge_calls == 0
        assert (
            equal.rewards_G == ([0.0, 0.5, 1.0] if is_switched else [1.0] * 3)
            and bool(equal.judge_calls) == is_switched
        )
        assert noise.ranks_G == equal.ranks_G and bool(noise.judge_calls) == is_switched


def test_what_a_world_leaves_out_is_0_and_what_its_score_leaves_open_is_no_reward():
    trajectories = [Trajectory("c0", [], "done", meta=meta) for meta in ({"reward": 1.0}, {}, {"reward": None})]
    trajectories.append(Trajectory("c0", [], "tool_crash"))
    outcome = arena_of(config_of(), None).reward_groups([RolloutGroup(QUERIES[0], trajectories)])[0]
    assert outcome.rewards_G == [1.0, 0.0, None, None] and outcome.ranks_G == [0.0, 1.0, None, None]


@pytest.mark.parametrize("given", [{}, {"score": lambda self: None}])
def test_a_run_that_is_to_be_rewarded_by_a_world_that_gives_nothing_stops(
    policy_path, tokenizer, tmp_path, given, capsys
):
    world = type("Free", (Counter,), {"call": lambda self, name, arguments: "It moves.", **given})
    config = config_of(steps=4, groups=2, micro_batch_size=8, eval_steps=0, stop_without_valid=2)
    engine = RolloutEngine(Playing(tokenizer), tokenizer, world, config.rollout, schemas_in_prompt=False)
    arena = arena_of(config, None)
    trainer = make_trainer(config, policy_path, QUERIES, KeptSteps(config, QUERIES, engine, arena, None, tmp_path))
    with pytest.raises(RunStopped, match="2 steps without a reward"):
        trainer.train()
    assert "8 trajectories; reward.name=environment, but the world gave none" in capsys.readouterr().out


def test_a_world_that_rewards_success_alone_may_take_its_time_and_then_go_without_again():
    watch = RewardWatch(patience=3)
    for step, rewards in enumerate([[None], [], [None], [None, 1.0], *[[None]] * 5]):
        watch.look(step, rewards)
    with pytest.raises(RunStopped):
        [patient.look(step, [None]) for patient in [RewardWatch(2)] for step in range(2)]
