"""Advantages and loss of every method in configs/: hand-worked values in numpy against TRL's on two groups of four.

Trajectories and the judge's scores are fixed; all code between them and the loss is real.
"""

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from methods import REWARDS, Method, loss_by_hand
from transformers import get_scheduler

from arenarl.config.checks import check_groups
from arenarl.config.load import load_config
from arenarl.config.value_types import SchedulerName
from arenarl.rollout.engine import RolloutEngine
from arenarl.rollout.policy import Limit
from arenarl.tables.documents import ROWS
from arenarl.tables.rows import LATER_TABLES, TABLES, read_table
from arenarl.training import trl_adapter as adapter

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("configs", "methods", "travel")
YAMLS = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name in FOLDERS)


class Crashing:
    """An environment in which the fourth trajectory's call crashes twice, and the fifth's reset fails."""

    def __init__(self, environment):
        self.tools, self.environment = environment.tools, environment
        self.resets = self.calls = 0

    def reset(self, query):
        self.resets += 1
        if self.resets in (6, 7):
            raise ConnectionError("gone")

    def call(self, name, arguments):
        self.calls += 1
        if self.calls in (2, 3):
            raise KeyError("x")
        return self.environment.call(name, arguments)


@pytest.mark.parametrize("name", ["quickstart", "methods/gdpo"])
def test_a_tool_crash_excludes_the_trajectory_and_the_step_continues(
    policy_path, model, tokenizer, compact, tmp_path, name
):
    scores = [9, 3, 4, 5, 2, 7, 8, 6]
    made = Method(policy_path, model, tokenizer, Crashing(compact), tmp_path, name, scores=scores).roll_out()
    rewards = [outcome.rewards_G for outcome in made.outcomes]
    assert [reward is None for group in rewards for reward in group] == [row in (3, 4) for row in range(8)]
    assert made.advantages[0, 3] == made.advantages[1, 0] == 0
    assert not made.own[4].any() and all(made.own[row].any() for row in (0, 1, 2, 3, 5, 6, 7))
    if name == "quickstart":
        assert made.advantages == pytest.approx(zero_missing(group_std(np.array(rewards, dtype=float))), abs=1e-5)
    initial = made.logps(made.initial)
    assert np.isfinite(made.loss(initial, initial, initial))


@pytest.mark.parametrize("end", ["tool_crash", "no_room"])
def test_a_step_of_void_trajectories_only_has_a_loss_of_0(
    policy_path, model, tokenizer, compact, tmp_path, monkeypatch, end
):
    broken = Crashing(compact)
    broken.reset = lambda query: {}["world"] if end == "tool_crash" else "hello " * 9000
    monkeypatch.setattr(RolloutEngine, "limit", Limit(3000, "that the model reads"))
    made = Method(policy_path, model, tokenizer, broken, tmp_path, "quickstart").roll_out()
    assert {one.stop_reason for group in made.steps.batch.groups for one in group.trajectories} == {end}
    assert not made.advantages.any() and not made.own.any()
    for outcome in made.outcomes:
        assert outcome.rewards_G == outcome.ranks_G == [None] * 4 and outcome.judge_calls == 0
    initial = made.logps(made.initial)
    assert made.loss(initial, initial, initial) == 0


def zero_missing(advantages):
    return np.nan_to_num(np.array(advantages, dtype=float))


def group_std(rewards, ddof=1, eps=1e-4):
    """Eq. 7: (reward - group mean) / group standard deviation, without NaN."""
    rows = []
    for group in rewards:
        known = group[~np.isnan(group)]
        mean = sum(known) / len(known)
        rows.append((group - mean) / ((sum((known - mean) ** 2) / (len(known) - ddof)) ** 0.5 + eps))
    return np.array(rows)


# By hand: the groups' means are 1/2 and 1/3; the sums of squared deviations are .24 and .3467.
CENTERED = np.array([[0.4, -0.2, -0.2, 0.0], [-2 / 15, np.nan, 7 / 15, -1 / 3]])
STANDARDISED = np.array([CENTERED[0] / (0.08**0.5 + 1e-4), CENTERED[1] / ((0.346666667 / 2) ** 0.5 + 1e-4)])
IN_STEP = CENTERED / (((0.24 + 0.346666667) / 6) ** 0.5 + 1e-4)  # seven rewards, six degrees of freedom
LEFT_OUT = np.array(
    [[0.9 - 1.1 / 3, 0.3 - 1.7 / 3, 0.3 - 1.7 / 3, 0.5 - 1.5 / 3], [0.2 - 0.4, np.nan, 0.8 - 0.1, 0.0 - 0.5]]
)
VALIDITY = np.array([[0.0] * 4, [1 / 3, np.nan, 1 / 3, -2 / 3]]) / ((1 / 3) ** 0.5 + 1e-4)  # all valid; two of three


def decoupled(more=0.0):
    total = STANDARDISED + VALIDITY + more
    known = total[~np.isnan(total)]
    assert sum(known) == pytest.approx(0)
    return total / ((sum(known**2) / 6) ** 0.5 + 1e-4)


# Tournament: the order 9 > 5 > 3 = 3 gives rewards 1, 1/6, 1/6, 2/3. In the other group, the second has no verdict and
# the invalid one is last: 1/2, -, 1, 0. Both groups have mean 1/2.
RANKED = group_std(np.array([[1, 1 / 6, 1 / 6, 2 / 3], [1 / 2, np.nan, 1, 0]]))
METHODS = {
    "methods/round_robin": RANKED,
    "methods/grpo": STANDARDISED,
    "methods/gspo": STANDARDISED,
    "methods/dapo": STANDARDISED,
    "methods/dr_grpo": CENTERED,
    "methods/rloo": LEFT_OUT,
    "methods/reinforce_plus_plus": IN_STEP,
    "methods/gdpo": decoupled(),
}


@pytest.mark.parametrize(
    "name", ["group_std", "center", "leave_one_out", "batch_std", "decoupled", "global_std", "gae"]
)
def test_a_step_of_equal_rewards_has_no_advantage(method, monkeypatch, name):
    """A mean of equal floats may differ from them by a rounding error, which a standard deviation of 0 would raise."""
    monkeypatch.setattr("methods.INVALID", None)
    keys = ["reward.name=pointwise_answer", f"rl.advantage={name}", "rl.gae_lambda=1"][: 3 if name == "gae" else 2]
    made = method("quickstart", *keys, ours=True)
    scores = (7,) if name == "gae" else (0, 1, 3, 7, 7.3, 10)  # after its first step, the critic tells tokens apart
    for score in scores:
        made.steps.arena.referee.judge.scores = [score] * 8
        made.roll_out()
        assert [one for _, outcome in made.steps.batch.judged() for one in outcome.rewards_G] == [score / 10] * 8
        assert made.batch["advantages"].abs().max() < 2e-3


def test_gdpo_standardises_each_dimension_of_an_explicit_reward(method):
    """The first query has a second dimension, whose scores are the squares; the second query has one dimension."""
    made = method("methods/gdpo", "reward.name=pointwise_explicit").roll_out()
    squares = np.vstack([group_std(np.array([[0.81, 0.09, 0.09, 0.25]])), np.zeros(4)])
    assert made.advantages == pytest.approx(zero_missing(decoupled(squares)), abs=2e-5)
    assert made.outcomes[0].rewards_G[0] == pytest.approx(((0.9 + 3 * 0.81) / 4 + 1) / 2)  # Eqs. 13 and 14


@pytest.mark.parametrize("name", METHODS)
def test_advantages_and_loss_equal_hand_worked_values(method, name):
    made = method(name).roll_out()
    expected = zero_missing(METHODS[name])
    assert made.advantages == pytest.approx(expected, abs=2e-5)
    assert made.advantages[1, 1] == 0 and np.abs(expected).max() > 0.4
    assert made.own.sum() < made.batch["completion_mask"].sum()  # observations are not the policy's own tokens

    rl, own = made.config.rl, made.own
    logps = made.logps(made.initial)
    rng = np.random.default_rng(0)
    shifts = rng.normal(size=logps.shape) + 2 * (-1) ** np.arange(8)[:, None]
    old = logps - rl.epsilon * shifts  # some tokens and rows are clipped
    ref = logps + rng.normal(size=logps.shape)
    advantages = np.broadcast_to(expected.reshape(8, 1), own.shape)
    by_hand = loss_by_hand(rl, made.config.rollout.max_tokens, logps, old, ref, own, advantages)
    assert made.loss(logps, old, ref) == pytest.approx(by_hand, rel=1e-5, abs=3e-6)
    metrics = made.trainer._metrics["train"]
    assert metrics["clip_ratio/low_mean"][-1] > 0 and metrics["clip_ratio/high_mean"][-1] > 0
    assert (made.trainer.ref_model is None) == ("kl" not in metrics) == (rl.beta == 0)


# Possible rewards for each reference: scores 9 3 3 5, and 2, no verdict, 8, invalid; 0 without a verdict.
REFERENCES = ([[0, -1, -1, -1], [1, 0, 0, 1], [1, -1, -1, 0]], [[0, 0, 1, -1], [0, 0, 0, 0], [-1, 0, 0, -1]])


def assert_loss_of_the_first_update(made, advantages):
    """TRL's loss of the policy of the rollout with a reference 0.1 away equals the loss by hand."""
    logps, max_tokens = made.logps(made.initial), made.config.rollout.max_tokens
    by_hand = loss_by_hand(made.config.rl, max_tokens, logps, logps, logps - 0.1, made.own, advantages)
    assert made.loss(logps, logps, logps - 0.1) == pytest.approx(by_hand, rel=1e-5, abs=3e-6)


@pytest.mark.parametrize("seed", range(4))
def test_brpo_s_advantages_are_its_rewards(method, seed):
    made = method("methods/brpo", f"seed={seed}", ours=True).roll_out()
    for advantages, allowed in zip(made.advantages.tolist(), REFERENCES, strict=True):
        assert advantages in allowed
    assert_loss_of_the_first_update(made, np.broadcast_to(made.advantages.reshape(8, 1), made.own.shape))


def test_reinforce_plus_plus_standardises_the_rewards_over_all_own_tokens_of_the_step(method):
    made = method("methods/reinforce_plus_plus_global", ours=True).roll_out()
    rewards, own = np.broadcast_to(REWARDS.reshape(8, 1), made.own.shape), made.own
    known = rewards[own & np.isfinite(rewards)]
    assert len(set(own.sum(axis=1))) > 2  # trajectories of other lengths weigh differently
    expected = np.where(own, np.nan_to_num((rewards - known.mean()) / known.std()), 0.0)
    assert made.batch["advantages"].numpy() == pytest.approx(expected, abs=2e-5)
    assert_loss_of_the_first_update(made, expected)


@pytest.mark.parametrize(("ddof", "epsilon"), [(0, 1e-4), (0, 0.0), (1, 0.5)])
def test_eq_7_uses_ddof_and_epsilon_from_the_yaml(method, ddof, epsilon):
    made = method("methods/grpo", f"rl.advantage_ddof={ddof}", f"rl.advantage_epsilon={epsilon}").roll_out()
    expected = zero_missing(group_std(REWARDS, ddof, epsilon))
    assert made.advantages == pytest.approx(expected, abs=2e-6)
    assert np.abs(expected - zero_missing(STANDARDISED)).max() > 0.1


def test_with_lora_the_reference_is_the_policy_without_its_adapter(method):
    made = method("methods/lora", "policy.lora_rank=2")
    trainable = {name: weight for name, weight in made.trainer.model.named_parameters() if weight.requires_grad}
    assert trainable and all("lora_" in name for name in trainable) and made.trainer.ref_model is None
    torch.manual_seed(0)
    for name, weight in trainable.items():
        if "lora_B" in name:  # 0 at first, so the policy would equal its reference
            weight.data.normal_(std=0.5)
    made.roll_out()
    reference, adapted = made.logps(made.initial), made.logps(made.trainer.model)
    kept = made.batch["completion_mask"].numpy().astype(bool)
    assert made.batch["ref_per_token_logps"].numpy()[kept] == pytest.approx(reference[kept], abs=1e-4)
    assert np.abs(adapted - reference)[kept].max() > 0.01
    away = (reference - adapted)[made.own]
    made.trainer._compute_loss(made.trainer.model, made.batch)
    assert made.trainer._metrics["train"]["kl"][-1] == pytest.approx(np.mean(np.exp(away) - away - 1), rel=1e-3)


def test_several_updates_share_one_rollout_and_its_old_policy_and_a_resumed_run_equals_the_unbroken(method, tmp_path):
    """From the second update on, the policy differs from the rollout's policy, so GSPO and DAPO can clip."""
    several = "rl.updates_per_rollout=2", "rl.micro_batch_size=4", "rl.learning_rate=1e-2", "rl.steps=4"
    made = method("methods/gspo", *several)
    batches, losses = [], made.trainer._compute_loss

    def compute_loss(model, inputs):
        batches.append(dict(inputs))
        return losses(model, inputs)

    made.trainer._compute_loss = compute_loss
    made.trainer.train()
    assert made.trainer.state.global_step == len(batches) == 4 and len(made.outcomes) == 2 * 2  # two rollouts
    for batch in batches[:2]:
        made.batch = batch
        old_logps = made.logps(made.initial)
        assert batch["old_per_token_logps"].numpy()[made.own] == pytest.approx(old_logps[made.own], abs=1e-4)
        assert np.abs(made.logps(made.trainer.model) - old_logps)[made.own].max() > 1e-3
    # sorted, because TRL shuffles the rows
    advantages = torch.cat([batch["advantages"] for batch in batches[:2]]).tolist()
    assert sorted(advantages) == pytest.approx(sorted(zero_missing(STANDARDISED).reshape(8)), abs=2e-5)
    log = made.trainer.state.log_history
    assert ["time/update_s" in entry for entry in log[:4]] == [True] * 4
    assert ["time/rollout_s" in entry for entry in log[:4]] == [True, False, True, False]
    explained = set(re.findall(r"`([\w/<>]+)`", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")))
    logged = {re.sub(r"^rewards/.+/", "rewards/<name>/", name) for entry in log[:4] for name in entry}
    assert sorted(logged - explained) == []  # TRL's own included

    resumed = method("methods/gspo", *several)
    resumed.trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert len(resumed.outcomes) == 2 and resumed.trainer.state.global_step == 4
    weights = resumed.trainer.model.state_dict()
    assert all(weight.equal(weights[name]) for name, weight in made.trainer.model.state_dict().items())


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_every_yaml_gives_valid_trainer_arguments(path, tmp_path):
    config = load_config(path, ["wandb.mode=disabled"])
    check_groups(config, processes=2)
    config.rl.deepspeed = None  # DeepSpeed would start a process group
    arguments = adapter.grpo_arguments(config, tmp_path, processes=1)
    rl, rows = config.rl, config.rl.groups * config.rollout.group_size
    assert arguments.generation_batch_size == rows and arguments.num_generations == config.rollout.group_size
    rows_per_update = arguments.gradient_accumulation_steps * arguments.per_device_train_batch_size
    assert rows_per_update * rl.updates_per_rollout == rows
    assert (arguments.beta, arguments.epsilon, arguments.loss_type) == (rl.beta, rl.epsilon, rl.loss_type)


@pytest.mark.parametrize("name", get_args(SchedulerName))
def test_every_scheduler_name_needs_no_other_settings(name):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    get_scheduler(name, optimizer, num_warmup_steps=1, num_training_steps=4)


def test_every_laptop_config_has_a_row_in_the_results_and_the_same_starting_policy():
    in_tables = {row.config for name in (*TABLES, *LATER_TABLES) for row in read_table(name).rows.values()}
    for path in (path for path in YAMLS if path.parent.name != "travel"):
        config, relative = load_config(path), str(path.relative_to(ROOT))
        has_row = ROWS.get(config.name, ("", None))[1] == relative or relative in in_tables
        assert has_row, f"{relative}: add its row to one of LATER_TABLES, such as configs/tables/table_methods.yaml"
        assert config.sft_policy == "runs/quickstart/sft" and config.rl.rollouts == 150, path
