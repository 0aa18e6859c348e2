"""The shared groups through `rank_groups` and through TRL's reward: what the other trainers' tests compare with."""

import asyncio

import pytest
from shared_groups import GROUPS, RANKS, REWARDS, judge, ranker

from arenarl import tournament_reward


def test_the_groups_have_these_ranks_and_rewards():
    ranked = asyncio.run(ranker().rank_all(GROUPS))
    assert [group.ranks for group in ranked] == RANKS
    for group, rewards in zip(ranked, REWARDS, strict=True):
        assert group.rewards == pytest.approx(rewards)


def test_trl_gives_the_same_rewards():
    function = tournament_reward(judge(), num_generations=4, topology="round_robin", max_failure_share=1.0)
    prompts = [prompt for prompt, candidates in GROUPS for _ in candidates]
    completions = [candidate for _, candidates in GROUPS for candidate in candidates]
    rewards = asyncio.run(function(prompts=prompts, completions=completions))
    assert rewards == pytest.approx([reward for group in REWARDS for reward in group])
