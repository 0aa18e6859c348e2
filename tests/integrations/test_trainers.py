"""The shared groups through every trainer's integration: the same ranks and rewards as `rank_groups` and TRL.

The trainers' packages are in environments of their own: ./reproduce.sh test_integrations.
"""

import asyncio
import json
import os
import runpy
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from judge_servers import Script, by_prompt, completion, serving
from shared_groups import GROUPS, OPTIONS, RANKS, REWARDS, judge_file, ranking

from arenarl.integrations.groups import split_chats
from arenarl.system.errors import UserError
from arenarl.trajectory.chats import chat_query, chat_trajectory

try:
    from slime.utils.types import Sample  # not on PyPI: with a checkout on PYTHONPATH
except ImportError:
    Sample = SimpleNamespace

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

NEUTRAL = [0.5 if reward is None else reward for rewards in REWARDS for reward in rewards]


def needs(module):
    """Return a trainer's module, or skip the test."""
    trainer = module.partition(".")[0]
    return pytest.importorskip(module, reason=f"./reproduce.sh test_integrations {trainer} sets up .venv-{trainer}")


def run(program, *words, folder):
    """Run a program of this environment, and return what it prints."""
    python_path = os.pathsep.join([str(EXAMPLES), *sys.path])
    command = [Path(sys.executable).with_name(program), *map(str, words)]
    environment = os.environ | {"PYTHONPATH": python_path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def environment_of_example(folder, monkeypatch):
    """Serve the judge, and name it to the examples that read it from the environment."""
    monkeypatch.chdir(folder)
    with judge_file(folder) as judge:
        monkeypatch.setenv("ARENARL_JUDGE", str(judge))
        monkeypatch.setenv("ARENARL_RUBRIC", OPTIONS["rubric"])
        monkeypatch.setenv("ARENARL_TOPOLOGY", OPTIONS["topology"])
        yield


def test_rank_groups_gives_these_ranks_and_rewards(tmp_path):
    with ranking(tmp_path) as ranker:
        ranked = asyncio.run(ranker.rank_all(GROUPS))
    assert [group.ranks for group in ranked] == RANKS
    assert [group.rewards for group in ranked] == [pytest.approx(rewards) for rewards in REWARDS]


def test_earlier_turns_of_a_dialogue_belong_to_the_prompt_and_tool_calls_to_the_candidate():
    """Otherwise a judge sees the first question beside answers to the last one."""

    def chat(*turns):
        return [{"role": role, "content": text} for role, text in turns]

    history = chat(("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "2 + 2?"))
    answers = [chat(("assistant", "4")), chat(("assistant", "5")), []]
    assert split_chats([history + answer for answer in answers]) == (history, answers)
    query, look = chat(("user", "Tea?")), chat(("assistant", ""), ("tool", "Assam"))
    attempts = [[*look, *chat(("assistant", name))] for name in ("Assam", "Water")]
    assert split_chats([query + attempt for attempt in attempts]) == (query, attempts)
    others = [[*query, *attempts[0]], [*query, *query, *attempts[0]], [*chat(("user", "Coffee?")), *attempts[0]]]
    for pair in ((others[0], others[1]), (others[1], others[0]), (others[0], others[2])):
        with pytest.raises(ValueError, match="must share their prompt"):
            split_chats(pair)


def test_trl(tmp_path):
    pytest.importorskip("trl", reason="the extra train installs trl")
    from arenarl import tournament_reward

    prompts = [prompt for prompt, candidates in GROUPS for _ in candidates]
    completions = [candidate for _, candidates in GROUPS for candidate in candidates]
    with judge_file(tmp_path) as judge:
        function = tournament_reward(judge, num_generations=4, store=tmp_path / "replies.sqlite", **OPTIONS)
        rewards = asyncio.run(function(prompts=prompts, completions=completions))
    assert rewards == pytest.approx([reward for group in REWARDS for reward in group])


def test_art_keeps_the_ranked_trajectories(tmp_path):
    art = needs("art")
    from arenarl.integrations.art import reward_groups

    def trajectory(prompt, answer):
        chat = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        return art.Trajectory(messages_and_choices=chat, reward=-1.0)

    async def roll_out(prompt, answers):
        return art.TrajectoryGroup([trajectory(prompt, answer) for answer in answers])

    async def gather(ranker, groups):
        rollouts = [roll_out(*group) for group in groups]
        return await art.gather_trajectory_groups(rollouts, after_each=reward_groups(ranker))

    with ranking(tmp_path) as ranker:
        for group, rewards, (_, answers) in zip(asyncio.run(gather(ranker, GROUPS)), REWARDS, GROUPS, strict=True):
            expected = [pair for pair in zip(answers, rewards, strict=True) if pair[1] is not None]
            assert [kept.messages()[-1]["content"] for kept in group.trajectories] == [answer for answer, _ in expected]
            assert [kept.reward for kept in group.trajectories] == pytest.approx([reward for _, reward in expected])
            assert group.metrics["judge_calls"] > 0
        # the group is dropped without a verdict, with one trajectory, and without any, as when all rollouts failed
        for answers in (["x", "y"], ["1"], []):
            assert asyncio.run(gather(ranker, [("?", answers)])) == []


def test_verifiers_fails_the_episode_with_a_missing_verdict(tmp_path):
    needs("verifiers")
    policy = by_prompt(lambda prompt, number: completion(dict(GROUPS)[prompt][number]))
    with judge_file(tmp_path) as judge, serving(policy) as url:
        keys = {"id": "verifiers_tournament", "n": 4, "agent.runtime.type": "subprocess", "judge": judge}
        keys |= {key.replace("_", "-"): value for key, value in OPTIONS.items()}
        words = [word for key, value in keys.items() for word in (f"--env.{key}", value)]
        words = ["vf_numbers", *words, "--model", "m", "--client.base-url", url, "--no-push", "--no-rich"]
        run("vf-eval", *words, folder=tmp_path)
    (traces,) = tmp_path.rglob("traces.jsonl")
    episodes = {episode["task"]["data"]["prompt"]: episode for episode in map(json.loads, open(traces))}
    for (prompt, answers), ranks, rewards in zip(GROUPS, RANKS, REWARDS, strict=True):
        episode = episodes[prompt]
        found = [(trace["nodes"][-1]["message"]["content"], trace["rewards"]) for trace in episode["traces"]]
        assert [answer for answer, _ in found] == answers
        if None in rewards:
            assert not episode["ok"] and not any(reward for _, reward in found)
            assert "1 of 4 attempts have no rank; 6 verdicts failed" in episode["errors"][0]["message"]
        else:
            assert [reward["tournament"]["score"] for _, reward in found] == pytest.approx(rewards)
            assert [trace["metrics"]["rank"] for trace in episode["traces"]] == ranks


def test_a_judge_sees_the_tool_calls_of_verifiers():
    vf = needs("verifiers.v1")
    from arenarl.integrations.verifiers import as_openai

    call = vf.ToolCall(id="1", name="search", arguments='{"query": "tea"}')
    chat = [vf.AssistantMessage(tool_calls=[call]), vf.ToolMessage(tool_call_id="1", content="Assam"),
            vf.AssistantMessage(content="Assam.")]  # fmt: skip
    trajectory = chat_trajectory(chat_query("?", "en"), [as_openai(message) for message in chat])
    assert trajectory.answer == "Assam." and "search" in str(trajectory.messages[0])


def test_swift_gives_the_group_mean_to_a_trajectory_without_a_rank(tmp_path, monkeypatch, capsys):
    needs("swift.rewards")
    import torch
    from swift.rewards import orms
    from swift.rl_core.advantage import compute_advantages
    from swift.rl_core.data import GRPOSample
    from swift.rl_core.grpo_algorithm import compute_rewards_per_func
    from swift.utils import import_external_file

    def rewards_of(samples):
        return compute_rewards_per_func(samples, [function], None, torch.device("cpu"))

    samples = [
        GRPOSample([{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}])
        for prompt, answers in GROUPS
        for answer in answers
    ]
    with environment_of_example(tmp_path, monkeypatch):
        import_external_file(str(EXAMPLES / "swift_tournament.py"))
        function = orms["tournament"](args=SimpleNamespace(num_generations=4))
        rewards = rewards_of(samples)
    assert rewards[:, 0].tolist() == pytest.approx(NEUTRAL)
    assert "1 of 4 trajectories have no rank, reward 0.5; 6 of 12 judge calls failed" in capsys.readouterr().out
    advantages, _ = compute_advantages(rewards, torch.ones(1), num_generations=4)
    assert [round(value, 3) == 0 for value in advantages.tolist()] == [reward == 0.5 for reward in NEUTRAL]
    for wrong in (samples[:-1], [*samples[1:], samples[0]]):
        with pytest.raises(UserError, match="not whole groups of num_generations=4"):
            rewards_of(wrong)


def test_verl_ranks_the_samples_of_a_prompt_when_they_have_met(tmp_path, capsys):
    needs("verl")
    import numpy as np
    import torch
    from hydra import compose, initialize_config_module
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    class Letters:
        def decode(self, ids, skip_special_tokens):
            return "".join(map(chr, ids))

    def manager_of(judge, *more):
        """Return the manager that verl loads for the example's command."""
        script = (EXAMPLES / "verl_tournament.sh").read_text().partition("main_ppo")[2].replace("\\\n", " ")
        keys = {"judge": judge, "store": tmp_path / "replies.sqlite"} | OPTIONS
        more = [*(f"++reward.reward_kwargs.{key}={value}" for key, value in keys.items()), *more]
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", [*shlex.split(script)[:-1], "actor_rollout_ref.rollout.n=4", *more])
        return load_reward_manager(config, Letters(), reward_router_address=None, reward_model_tokenizer=None)

    def sample(uid, answer):
        """Return one sample as verl's agent loop sends it to a reward worker, padded."""
        ids = torch.tensor([[ord(letter) for letter in answer + "pad"]])
        mask = torch.tensor([[1] * (1 + len(answer)) + [0] * 3])
        prompt = [{"role": "user", "content": GROUPS[uid][0]}]
        batch = TensorDict({"prompts": ids[:, :1], "responses": ids, "attention_mask": mask}, batch_size=1)
        return DataProto(batch, {"uid": np.array([str(uid)]), "raw_prompt": np.array([prompt])})

    async def rewards_of(manager, samples):
        return [found["reward_score"] for found in await asyncio.gather(*map(manager.run_single, samples))]

    async def late():
        manager.deadline_s = 0.5
        *early, last = [sample(0, answer) for answer in GROUPS[0][1]]
        return await rewards_of(manager, early) + await rewards_of(manager, [last])

    places = [(uid, place) for place in range(4) for uid in range(3)]  # the groups' samples come in turns
    with judge_file(tmp_path) as judge:
        manager = manager_of(judge)
        found = asyncio.run(rewards_of(manager, [sample(uid, GROUPS[uid][1][place]) for uid, place in places]))
        assert found == pytest.approx([NEUTRAL[4 * uid + place] for uid, place in places])
        assert asyncio.run(late()) == [0.0, 1.0, 0.5, 0.5]
        printed = capsys.readouterr().out
        assert "3 of 4 samples of 0 came within 0.5 s" in printed and "a sample of 0 came after" in printed
        wrong = {"reward.num_workers=2": "set it to 1", "data.train_batch_size=1024": "exceeds 1000"}
        wrong |= {"trainer.test_freq=5": "would validate", "+reward.reward_kwargs.topologi=anchor": "topologi"}
        for override, problem in wrong.items():
            with pytest.raises(UserError, match=problem):
                manager_of(judge, override)


def test_slime_removes_a_sample_without_a_rank_from_the_loss(tmp_path, monkeypatch):
    with environment_of_example(tmp_path, monkeypatch):
        function = runpy.run_path(str(EXAMPLES / "slime_tournament.py"))["reward"]
        for (prompt, answers), rewards in zip(GROUPS, REWARDS, strict=True):
            samples = [Sample(prompt=prompt, response=answer, remove_sample=False) for answer in answers]
            found = asyncio.run(function(SimpleNamespace(), samples))
            assert found == pytest.approx([0.5 if reward is None else reward for reward in rewards])
            assert [sample.remove_sample for sample in samples] == [reward is None for reward in rewards]
    for wrong in ([samples, samples], [samples[0], Sample(prompt="another")]):
        with pytest.raises(UserError, match="a custom generate function must return one|start slime with --group-rm"):
            asyncio.run(function(SimpleNamespace(), wrong))


def test_the_example_of_art_runs_against_a_policy_and_a_judge_over_http(tmp_path):
    needs("art")
    with serving(Script("7").app) as policy, judge_file(tmp_path) as judge:
        words = ["--policy", policy, "--model", "m", "--judge", judge, "--rubric", OPTIONS["rubric"], "--size", "3"]
        printed = run("python", EXAMPLES / "art_tournament.py", *words, folder=tmp_path)
    assert printed.count("[0.5, 0.5, 0.5]") == 3  # equal answers share their rank
