"""PPO: advantages and values per token against hand-worked values, the critic's training and its checkpoints."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import tiny_models
import torch
from accelerate import Accelerator
from methods import REWARDS, loss_by_hand
from scripts import ENVIRONMENT
from transformers import CohereConfig, Gemma2Config, GPTNeoXJapaneseConfig

from arenarl.config.load import load_config
from arenarl.config.schema import PolicyConfig, RLConfig
from arenarl.plan.stage import Stage
from arenarl.training.critic import FILE, Critic, whiten
from arenarl.training.methods.ppo import generalized_advantages
from arenarl.training.trl_internals import Rows

PPO = "methods/ppo"


def gae_by_hand(reward, values, discount, gae_lambda):
    """A_t = sum over l of (discount lambda)^l delta_{t+l}."""
    ahead, rewards = [*values, 0.0][1:], [0.0] * len(values)
    rewards[-1:] = [reward] if values else []
    deltas = [r + discount * after - value for r, after, value in zip(rewards, ahead, values, strict=True)]
    return [
        sum((discount * gae_lambda) ** later * delta for later, delta in enumerate(deltas[t:]))
        for t in range(len(values))
    ]


@pytest.mark.parametrize(("discount", "gae_lambda"), [(1.0, 1.0), (1.0, 0.0), (0.9, 0.95), (0.5, 0.3)])
def test_time_steps_are_the_policy_s_own_tokens(discount, gae_lambda):
    generator = torch.Generator().manual_seed(0)
    own, values = torch.randint(0, 2, (5, 12), generator=generator), torch.randn(5, 12, generator=generator)
    own[4] = 0
    found = generalized_advantages(torch.arange(5.0), values, own, discount, gae_lambda)
    for row in range(5):
        is_own = own[row].bool()
        assert found[row, is_own].tolist() == pytest.approx(
            gae_by_hand(float(row), values[row, is_own].tolist(), discount, gae_lambda), abs=1e-5
        )
        assert not found[row, ~is_own].any()


def values_by_hand(made, critic):
    """The critic's value (8, T) at the token before each own token, row by row and without padding; 0 elsewhere."""
    batch, values = made.batch, np.zeros(made.own.shape)
    for row in range(len(values)):
        prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
        completion = batch["completion_ids"][row][batch["completion_mask"][row].bool()]
        with torch.no_grad():
            found = critic(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1, 0]
        values[row, : len(completion)] = found.numpy()
    return values * made.own


@pytest.fixture
def ppo(method):
    return lambda *overrides: method(PPO, *overrides, ours=True)


def test_advantages_and_loss_equal_hand_worked_values(ppo, monkeypatch):
    made = ppo("rl.discount=0.9", "rl.gae_lambda=0.8")
    critic = made.trainer.critic
    torch.manual_seed(0)
    critic.model.lm_head.weight.data.normal_(std=0.5)  # the value head starts at 0
    monkeypatch.setattr(critic, "fit", lambda rows, returns_BT: 0.0)
    made.roll_out()
    values, own, rewards = values_by_hand(made, critic.model), made.own, REWARDS.reshape(8)
    counted = own & np.isfinite(rewards)[:, None]
    expected = np.zeros(own.shape)
    for row in range(8):
        if np.isfinite(rewards[row]):
            expected[row, own[row]] = gae_by_hand(rewards[row], values[row, own[row]].tolist(), 0.9, 0.8)
    expected[counted] = (expected[counted] - expected[counted].mean()) / expected[counted].std()
    advantages = made.batch["advantages"].numpy()
    assert advantages == pytest.approx(expected, abs=2e-4)
    assert not advantages[5].any() and np.ptp(advantages[0][own[0]]) > 0.1

    logps = made.logps(made.initial)
    rng = np.random.default_rng(0)
    old, ref = logps + rng.normal(scale=0.3, size=logps.shape), logps + rng.normal(size=logps.shape)
    rl = made.config.rl
    by_hand = loss_by_hand(rl, made.config.rollout.max_tokens, logps, old, ref, own, expected)
    assert made.loss(logps, old, ref) == pytest.approx(by_hand, rel=1e-4, abs=3e-6)


def test_the_critic_s_step_uses_half_the_squared_error_over_all_own_tokens(ppo):
    made = ppo("rl.micro_batch_size=4", "rl.max_grad_norm=1e9")
    critic = made.trainer.critic
    before = {name: weight.clone() for name, weight in critic.model.state_dict().items()}
    made.roll_out()  # fits values of 0 to the rewards
    rewards, own = REWARDS.reshape(8), made.own & np.isfinite(REWARDS.reshape(8))[:, None]
    error = sum(rewards[row] ** 2 * own[row].sum() for row in range(8) if np.isfinite(rewards[row])) / own.sum()
    assert made.trainer._metrics["train"]["critic/error"][-1] == pytest.approx(error, rel=1e-4)
    assert made.trainer._metrics["train"]["critic/value"][-1] == 0

    other = ppo().trainer.critic.model
    other.load_state_dict(before)
    optimizer = torch.optim.AdamW(other.parameters(), lr=made.config.rl.critic_learning_rate, weight_decay=0.0)
    loss = 0.0
    whole = {name: torch.cat([made.batch[f"{part}_{name}"] for part in ("prompt", "completion")], dim=1)
             for name in ("ids", "mask")}  # fmt: skip
    for row in np.flatnonzero(np.isfinite(rewards)):
        ids, mask = whole["ids"][row], whole["mask"][row]
        values = other(ids[mask.bool()][None]).logits[0, :, 0]
        places = np.flatnonzero(own[row]) + int(made.batch["prompt_mask"][row].sum()) - 1
        loss = loss + ((values[places] - rewards[row]) ** 2).sum() / 2 / own.sum()
    loss.backward()
    optimizer.step()
    after = critic.model.state_dict()
    assert any(not weight.equal(before[name]) for name, weight in after.items())
    for name, weight in other.state_dict().items():
        torch.testing.assert_close(after[name], weight, atol=2e-5, rtol=1e-3)


def test_a_resumed_run_has_the_critic_of_its_checkpoint(ppo, tmp_path):
    whole = ppo("rl.steps=4")
    whole.trainer.train()
    assert (tmp_path / "checkpoint-2" / FILE).is_file()
    resumed = ppo("rl.steps=4")
    resumed.trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for find in (lambda made: made.trainer.model, lambda made: made.trainer.critic.model):
        weights = find(resumed).state_dict()
        assert all(weight.equal(weights[name]) for name, weight in find(whole).state_dict().items())


def test_the_critic_takes_as_many_updates_as_the_policy(ppo):
    made = ppo("rl.updates_per_rollout=2", "rl.micro_batch_size=4", "rl.steps=4")
    made.trainer.train()
    assert {int(state["step"]) for state in made.trainer.critic.optimizer.state.values()} == {4}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_lora_the_critic_trains_adapters_and_its_whole_head_in_float32(ppo, dtype):
    made = ppo("policy.lora_rank=2", "rl.critic_learning_rate=1e-2", f"policy.dtype={dtype}")
    critic = made.trainer.critic
    trained = {name: weight.dtype for name, weight in critic.model.named_parameters() if weight.requires_grad}
    assert set(trained.values()) == {torch.float32} and all("lora_" in name or "lm_head" in name for name in trained)
    made.roll_out()
    assert critic.model.get_base_model().lm_head.modules_to_save["default"].weight.abs().max() > 0


def gpt_neox_japanese():
    """Return a config of a model whose output embedding is not called lm_head."""
    sizes = {key: value for key, value in tiny_models.SMALL.items() if "key_value" not in key}
    return GPTNeoXJapaneseConfig(**sizes, architectures=["GPTNeoXJapaneseForCausalLM"])


def gemma2():
    """Return a config of a model that caps its logits, in practice far above the values of this test."""
    return Gemma2Config(**tiny_models.SMALL, final_logit_softcapping=0.05, architectures=["Gemma2ForCausalLM"])


def cohere():
    return CohereConfig(**tiny_models.SMALL, logit_scale=0.01, architectures=["CohereForCausalLM"])


@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize("make", [tiny_models.qwen3_5, tiny_models.gemma3, gpt_neox_japanese, gemma2, cohere])
def test_the_critic_of_another_architecture_learns_one_value_per_token(make, lora_rank, tmp_path):
    tiny_models.build(make()).save_pretrained(tmp_path)
    config, rl = PolicyConfig(dtype="float32", lora_rank=lora_rank), RLConfig(critic_learning_rate=1e-2)
    critic, own = Critic(str(tmp_path), config, rl, Accelerator(cpu=True)), torch.ones(2, 8, dtype=torch.long)
    unused = torch.nn.Parameter(torch.ones(3))  # as an adapter of a layer that is never called
    critic.trained.append(unused)
    rows = Rows(torch.arange(10, 34).view(2, 12), torch.ones(2, 12, dtype=torch.long), own)
    assert critic.values(rows).shape == own.shape and not critic.values(rows).any()
    errors = [critic.fit(rows, own.float()) for _ in range(4)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.9 and unused.tolist() == [1, 1, 1]


def test_the_plan_counts_the_critic():
    ppo, grpo = (
        Stage(load_config(f"configs/methods/{name}.yaml", ["policy.model=Qwen/Qwen3-1.7B"]), "rl").training.states()
        for name in ("ppo", "grpo")
    )
    assert set(ppo) - set(grpo) == {"critic"}
    assert ppo["critic"] == sum(ppo[part] for part in ("parameters", "gradients", "Adam's two moments"))


@pytest.mark.parametrize("noise", [0.0, 1e-8])
def test_whitening_equal_values_gives_0_and_nan_stays(noise):
    alone, generator = Accelerator(cpu=True), torch.Generator().manual_seed(0)
    for value in torch.linspace(-2, 2, 41):
        own = torch.randint(0, 2, (8, 300), generator=generator)
        values = (value * (1 + noise * torch.randn(own.shape, generator=generator))) * own
        assert not whiten(values, own, alone).any()
        assert whiten(values + torch.randn(own.shape, generator=generator) * own, own, alone).std() > 0.5
        assert whiten(values.where(values == 0, math.nan), own, alone).isnan().any() == bool(value)
    assert not whiten(torch.randn(2, 3), torch.zeros(2, 3, dtype=torch.long), alone).any()


ONE_OF_TWO = """
import sys
import torch
from accelerate import Accelerator
from arenarl.config.schema import PolicyConfig, RLConfig
from arenarl.training.critic import Critic

accelerator = Accelerator(cpu=True)
torch.manual_seed(accelerator.process_index)  # TRL does the same before the critic is made
critic = Critic(sys.argv[1], PolicyConfig(dtype="float32", lora_rank=4), RLConfig(), accelerator)
torch.save(critic.model.state_dict(), f"critic{accelerator.process_index}.pt")
"""


@pytest.mark.slow(seconds=12)
def test_with_lora_all_processes_have_the_same_critic(policy_path, tmp_path):
    (tmp_path / "one_of_two.py").write_text(ONE_OF_TWO)
    command = [sys.executable, "-m", "arenarl.run.launch", "--nproc_per_node", "2", "one_of_two.py", policy_path]
    process = {"cwd": tmp_path, "env": os.environ | ENVIRONMENT}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **process)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"critic{rank}.pt") for rank in range(2))
    assert first.keys() == second.keys() and any("lora_A" in name for name in first)
    assert all(first[name].equal(second[name]) for name in first)
