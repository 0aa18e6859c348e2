"""RL in stateful environments, some of which crash: TRL's trainer takes steps on the environments' rewards."""

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
    """A policy that moves the counter by the request's seed, mostly up."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    async def generate(self, request):
        action = "down" if request.seed % 4 == 0 else "up"
        call = f'{{"name": "act", "arguments": {{"action": "{action}"}}}}'
        text = f"<think>\nmove\n</think>\n\n<tool_call>\n{call}\n</tool_call>"
        return GeneratedTurn([*self.tokenizer.encode(text), self.tokenizer.eos_token_id])


@pytest.mark.slow(seconds=8)
def test_rl_continues_when_every_tenth_call_kills_the_environment(policy_path, tokenizer, tmp_path, capfd):
    world = mortal(0.1, type("Fresh", (Counter,), {"made": 0, "closed": 0}))
    config = config_of(steps=6, groups=2, micro_batch_size=8, eval_steps=1, learning_rate=1e-4)
    engine = RolloutEngine(Playing(tokenizer), tokenizer, world, config.rollout, schemas_in_prompt=False)
    arena = arena_of(config, None)
    steps = KeptSteps(config, QUERIES, engine, arena, None, tmp_path)
    trainer = make_trainer(config, policy_path, QUERIES, steps)
    trainer.train()
    kept = [pair for step in zip(steps.all_groups, steps.all_outcomes, strict=True) for pair in zip(*step, strict=True)]
    assert trainer.state.global_step == 6 and len(kept) == 12
    assert world.made == world.closed and world.deaths > 4
    trajectories = [trajectory for group, _ in kept for trajectory in group.trajectories]
    restarted = [trajectory for trajectory in trajectories if "begun_again" in trajectory.meta]
    void = [trajectory for trajectory in trajectories if trajectory.is_void]
    assert restarted and void and len(void) < len(restarted)
    for group, outcome in kept:
        for trajectory, reward in zip(group.trajectories, outcome.rewards_G, strict=True):
            assert reward == (None if trajectory.is_void else trajectory.meta["reward"])
            if not trajectory.is_void:  # the counter's reward, from the number of observations
                observations = [message for message in trajectory.messages if message["role"] == "tool"]
                assert reward == pytest.approx(0.1 * len(observations) + (trajectory.stop_reason == "done"))
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert all(math.isfinite(entry["loss"]) for entry in logged)
    assert any(entry["rollout/begun_again"] > 0 for entry in logged)
    assert sum(entry["rollout/tool_crash_rate"] for entry in logged) * 8 == pytest.approx(len(void))


def test_tournament_if_equal_ranks_equal_outcomes_by_a_tournament():
    class Longest:
        async def compare(self, query, first, second, repeat=0):
            scores = tuple({"x": float(len(trajectory.messages))} for trajectory in (first, second))
            return Verdict(scores, lambda dimensions: dimensions["x"])

    def group(*rewards):
        messages = [{"role": "assistant", "content": "<answer>\nx\n</answer>", "reasoning_content": ""}]
        rows = enumerate(rewards, start=1)
        trajectories = [Trajectory("c0", messages * row, "done", meta={"reward": reward}) for row, reward in rows]
        return RolloutGroup(QUERIES[0], trajectories)

    config = config_of()
    for is_on in (False, True):
        config.reward.tournament_if_equal = is_on
        groups = [group(1.0, 1.0, 1.0), group(0.0, 1.0, 0.5), group(0.1 + 0.2, 0.3, 0.3)]
        equal, unequal, noise = arena_of(config, Longest()).reward_groups(groups)
        assert unequal.rewards_G == [0.0, 1.0, 0.5] and unequal.judge_calls == 0
        assert equal.rewards_G == ([0.0, 0.5, 1.0] if is_on else [1.0] * 3) and bool(equal.judge_calls) == is_on
        assert noise.ranks_G == equal.ranks_G and bool(noise.judge_calls) == is_on


def test_a_missing_environment_reward_is_0_and_a_score_of_none_is_no_reward():
    trajectories = [Trajectory("c0", [], "done", meta=meta) for meta in ({"reward": 1.0}, {}, {"reward": None})]
    trajectories.append(Trajectory("c0", [], "tool_crash"))
    outcome = arena_of(config_of(), None).reward_groups([RolloutGroup(QUERIES[0], trajectories)])[0]
    assert outcome.rewards_G == [1.0, 0.0, None, None] and outcome.ranks_G == [0.0, 1.0, None, None]


@pytest.mark.parametrize("methods", [{}, {"score": lambda self: None}])
def test_a_run_stops_if_the_environment_never_gives_a_reward(policy_path, tokenizer, tmp_path, methods, capsys):
    world = type("Free", (Counter,), {"call": lambda self, name, arguments: "It moves.", **methods})
    config = config_of(steps=4, groups=2, micro_batch_size=8, eval_steps=0, stop_without_valid=2)
    engine = RolloutEngine(Playing(tokenizer), tokenizer, world, config.rollout, schemas_in_prompt=False)
    arena = arena_of(config, None)
    trainer = make_trainer(config, policy_path, QUERIES, KeptSteps(config, QUERIES, engine, arena, None, tmp_path))
    with pytest.raises(RunStopped, match="2 steps without a reward"):
        trainer.train()
    assert "8 trajectories; reward.name=environment, but the environment returned no reward" in capsys.readouterr().out


def test_steps_without_rewards_do_not_stop_the_run_after_the_first_reward():
    watch = RewardWatch(patience=3)
    for step, rewards in enumerate([[None], [], [None], [None, 1.0], *[[None]] * 5]):
        watch.look(step, rewards)
    never = RewardWatch(patience=2)
    never.look(0, [None])
    with pytest.raises(RunStopped):
        never.look(1, [None])
