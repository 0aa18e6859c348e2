"""The transformers back end in a second process: a real child with a real policy."""

import asyncio
import os
import signal

import pytest
import torch

from arenarl.config.load import config_of_keys
from arenarl.rollout.generation import TransformersGenerator, TurnRequest, run_turns
from arenarl.rollout.kv_cache import TrajectoryCache
from arenarl.rollout.policy import load_model
from arenarl.rollout.second_process import ProcessGenerator
from arenarl.system.errors import UserError

PROMPTS = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
TEMPERATURES = [0.0, 0.8, 0.8]  # the first row is greedy


def turns_of(generator):
    """Return each row's two turns; the second one continues the first with its cache."""

    async def turns(prompt, temperature, seed):
        cache = TrajectoryCache()
        first = await generator.generate(TurnRequest(prompt, 6, temperature, seed, cache))
        longer = [*prompt, *first.token_ids, 20, 21]
        return first, await generator.generate(TurnRequest(longer, 4, temperature, seed + 1, cache))

    async def run():
        return await asyncio.gather(*(turns(*row, 7) for row in zip(PROMPTS, TEMPERATURES, strict=True)))

    return run_turns(generator, run())


def logprobs_of(model, prompt, token_ids, temperature):
    with torch.no_grad():
        logits = model(torch.tensor([prompt + token_ids])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / (temperature or 1.0), dim=-1).gather(1, torch.tensor(token_ids)[:, None])[:, 0]


@pytest.mark.slow(seconds=15)
def test_the_child_generates_the_tokens_of_this_process_with_their_logprobs_and_dies_loudly(
    policy_path, tokenizer, model
):
    config = config_of_keys({"policy": {"dtype": "float32"}}, "test")
    generator = ProcessGenerator(policy_path, config, tokenizer)
    trained = load_model(policy_path, "float32").eval()
    with torch.no_grad():
        for weights in trained.parameters():
            weights.add_(0.05 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(1)))
    seen = []
    for policy in (model, trained, model):
        generator.load({name: weights.detach().clone() for name, weights in policy.named_parameters()})
        here = TransformersGenerator(policy, tokenizer, config.rollout.batch_size)
        seen.append([[turn.token_ids for turn in row] for row in turns_of(generator)])
        assert seen[-1] == [[turn.token_ids for turn in row] for row in turns_of(here)]
        for prompt, temperature, (first, _) in zip(PROMPTS, TEMPERATURES, turns_of(generator), strict=True):
            expected = logprobs_of(policy, prompt, first.token_ids, temperature)
            assert torch.tensor(first.logprobs_T).allclose(expected, atol=1e-5)
    assert seen[0] == seen[2] != seen[1]
    assert not generator._numbers  # the caches of ended trajectories are forgotten here, and then in the child
    with pytest.raises(KeyError):  # an error of the child is raised here, and the child lives on
        generator.load({})
    os.kill(generator._process.pid, signal.SIGKILL)
    with pytest.raises(UserError, match="has ended with exit code -9; the same command then resumes"):
        turns_of(generator)
