"""examples/one_page.py has the same ranks, rewards, advantages, loss and rollout tokens as train_rl.py."""

import asyncio
import importlib.util
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from methods import Method

from arenarl.config.schema import Config, JudgeConfig
from arenarl.domains.domain import make_domain
from arenarl.judges.factory import make_judge
from arenarl.judges.judge import make_examiner, scores_and_detail
from arenarl.rollout.engine import Progress, RolloutEngine
from arenarl.rollout.environment import Step
from arenarl.rollout.generation import TransformersGenerator
from arenarl.system.seeds import stable_seed
from arenarl.tournament import run_tournament
from arenarl.training.methods.grpo import standardize
from arenarl.training.rewards import rank_to_reward
from arenarl.trajectory import Trajectory, tool_message


@pytest.fixture(scope="module")
def page():
    path = Path(__file__).resolve().parents[1] / "examples" / "one_page.py"
    spec = importlib.util.spec_from_file_location("one_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_the_sft_policy_the_page_names_the_commands_that_make_it(page, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["one_page", "--policy", "nowhere"])
    with pytest.raises(SystemExit):
        page.main()
    assert "the folder nowhere does not exist; first run: ./reproduce.sh data" in capsys.readouterr().err


@pytest.mark.parametrize("step", [0.25, 4.0], ids=["few ties", "many ties"])
def test_ranks_rewards_and_advantages_are_the_tournaments(page, taught, step):
    domain = make_domain(Config().environment, Config().data)
    examine, rng = make_examiner(domain), random.Random(0)
    for size in (*range(2, 12), 16, 17):
        query = rng.choice(taught).query
        judge = make_judge(JudgeConfig(name="embedded", rounding=step), domain, examine, seed=size)
        group = [a_trajectory(rng, taught, query) for _ in range(size)]
        group += rng.choices(group, k=1)  # a duplicate

        async def compare(i, j, query=query, group=group, judge=judge):
            return scores_and_detail(await judge.compare(query, group[i], group[j]))

        expected = run_tournament(
            "seeded_single_elimination",
            len(group),
            compare,
            seed=stable_seed(5, query.query_id),
            entrants=[repr(trajectory.messages) for trajectory in group],
            valid_G=[trajectory.valid for trajectory in group],
        ).ranks_G
        (ranks_G,) = asyncio.run(page.rank_groups([query], [group], judge, seed=5))
        assert ranks_G == expected
        rewards_G = page.rank_to_reward(ranks_G)
        assert rewards_G.tolist() == pytest.approx(rank_to_reward(expected))
        assert page.standardize(rewards_G).tolist() == pytest.approx(standardize(rank_to_reward(expected)), abs=1e-5)


def a_trajectory(rng, taught, query) -> Trajectory:
    """Return a random teacher's trajectory as an attempt at the query; one in six has no answer."""
    messages = rng.choice(taught).trajectory.messages
    return Trajectory(query.query_id, messages, rng.choice(["answer"] * 5 + ["no_answer"]))


def test_the_loss_is_trls_for_the_same_trajectories(page, policy_path, model, tokenizer, compact, tmp_path):
    method = Method(policy_path, model, tokenizer, compact, tmp_path, "quickstart", "rl.beta=0.3", ours=True).roll_out()
    batch = [trajectory for group in method.steps.all_groups[-1] for trajectory in group.trajectories]
    policy_BT, own_BT = page.log_probabilities(method.trainer.model, batch, method.config.rollout.temperature)
    generator = torch.Generator().manual_seed(0)
    old_BT, reference_BT = (policy_BT.detach() + 0.3 * torch.randn(policy_BT.shape, generator=generator) for _ in "ab")
    advantages_B = method.batch["advantages"]
    loss = page.clipped_loss(policy_BT, old_BT, reference_BT, own_BT, advantages_B, method.config.rl)

    def of_completions(values_BT):
        """Remove the prompt's columns, which TRL's arrays do not have."""
        rows = [row[len(trajectory.prompt_ids) - 1 :] for row, trajectory in zip(values_BT, batch, strict=True)]
        width = method.batch["completion_ids"].shape[1]
        return torch.stack([torch.nn.functional.pad(row, (0, width))[:width] for row in rows])

    expected = method.loss(None, of_completions(old_BT).numpy(), of_completions(reference_BT).numpy())
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_a_greedy_rollout_has_the_engines_tokens(page, model, tokenizer, compact, taught):
    rollout = Config().rollout
    rollout.group_size, rollout.max_tokens, rollout.max_turn_tokens, rollout.max_turns = 2, 60, 20, 3
    queries, generator = [pair.query for pair in taught[::20]], TransformersGenerator(model, tokenizer, 8)
    engine = RolloutEngine(generator, tokenizer, lambda: compact, rollout, schemas_in_prompt=False)
    groups = page.roll_out(model, tokenizer, compact, queries, rollout)
    for group, expected in zip(groups, engine.roll_out_groups(queries, seed=0), strict=True):
        for name in ("prompt_ids", "completion_ids", "stop_reason"):
            assert getattr(group[0], name) == getattr(expected.trajectories[0], name)


def test_observations_are_tokenised_as_by_the_engine(page, tokenizer, compact):
    engine = RolloutEngine(SimpleNamespace(), tokenizer, lambda: compact, Config().rollout, schemas_in_prompt=False)
    texts = ["Lotus Park ¥20", "Error: no such place"]
    progress = Progress([{"role": "assistant", "content": "look"}], [])
    engine._append_observations(progress, [Step(text) for text in texts])
    assert page.observation_ids(tokenizer, [tool_message(text) for text in texts]) == progress.completion_ids
