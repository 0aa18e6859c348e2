"""ART's own gathering and groups, and its example; needs openpipe-art: ./reproduce.sh test_integrations."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from judge_servers import Script, serving
from shared_groups import GROUPS, REWARDS, ranker

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "art_tournament.py"
art = pytest.importorskip("art", reason="./reproduce.sh test_integrations installs openpipe-art")


def trajectory(prompt, answer):
    chat = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return art.Trajectory(messages_and_choices=chat, reward=-1.0)


def gather(groups, **options):
    from arenarl.integrations.art import reward_groups

    async def roll_out(prompt, answers):
        return art.TrajectoryGroup([trajectory(prompt, answer) for answer in answers])

    async def run():
        rollouts = [roll_out(*group) for group in groups]
        return await art.gather_trajectory_groups(rollouts, after_each=reward_groups(ranker()), **options)

    return asyncio.run(run())


def test_trajectories_get_the_rewards_of_their_ranks_and_one_without_a_verdict_leaves_its_group():
    for group, rewards, (_, answers) in zip(gather(GROUPS), REWARDS, GROUPS, strict=True):
        expected = {answer: reward for answer, reward in zip(answers, rewards, strict=True) if reward is not None}
        found = {kept.messages()[-1]["content"]: kept.reward for kept in group.trajectories}
        assert found == pytest.approx(expected)
        assert group.metrics["judge_calls"] > 0


def test_a_group_without_verdicts_is_dropped():
    assert gather([("?", ["x", "y"])]) == []


def test_the_example_runs_against_a_policy_and_a_judge_over_http(tmp_path):
    policy, judge = Script("an answer"), Script('{"agent_1": {"quality": 7}, "agent_2": {"quality": 3}}')
    with serving(policy.app) as policy_url, serving(judge.app) as judge_url:
        (tmp_path / "judge.yaml").write_text(
            json.dumps({"name": "llm", "model": "m", "base_url": judge_url, "api_key_variable": None})
        )
        words = ["--policy", policy_url, "--model", "m", "--judge", "judge.yaml", "--size", "3"]
        done = subprocess.run([sys.executable, EXAMPLE, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[0.5, 0.5, 0.5]") == 3  # equal answers share their rank
