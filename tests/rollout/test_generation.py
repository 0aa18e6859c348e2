"""Turns of the transformers back end: sampling, batching, failures."""

import asyncio
import copy
import shutil
from dataclasses import replace

import pytest
import torch
from peft import get_peft_model
from policies import generate, random_requests
from scipy.stats import chisquare
from transformers import GenerationConfig, MambaConfig, MambaForCausalLM, Qwen3Config

from arenarl.rollout.generation import PerRowSampling, TransformersGenerator, TurnRequest
from arenarl.rollout.kv_cache import TrajectoryCache
from arenarl.rollout.policy import load_model, lora_config
from arenarl.system.errors import UserError

CPU = torch.device("cpu")


def sample(logits, temperatures, seeds, length=1):
    """Draw tokens (rows, length) from the same logits (rows, vocabulary) at every position."""
    rows = zip(temperatures, seeds, strict=True)
    draw = PerRowSampling([TurnRequest([0], length, temperature, seed) for temperature, seed in rows], CPU)
    return torch.stack([draw(logits) for _ in range(length)], dim=1)


def tokens_of(generator, requests):
    return [turn.token_ids for turn in generate(generator, requests)]


@pytest.fixture
def generator(model, tokenizer):
    return TransformersGenerator(model, tokenizer, batch_size=4)


def test_greedy_rows_take_the_most_likely_token_among_sampled_ones():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    untouched = logits.clone()
    picked = sample(logits, [0, 5.0, 0, 5.0, 5.0, 0], range(6), length=20)
    for row in (0, 2, 5):
        assert (picked[row] == logits[row].argmax()).all()
    for row in (1, 3, 4):
        assert len(set(picked[row].tolist())) > 5
    assert torch.equal(logits, untouched)


@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.0, 2.0])
def test_sampled_frequencies_follow_the_softmax_at_the_rows_temperature(temperature):
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, 0.5, 1.5]])
    picked = sample(logits.expand(40, -1), [temperature] * 40, range(40), length=500)
    expected = torch.softmax(logits[0].double() / temperature, dim=-1) * picked.numel()
    assert chisquare(torch.bincount(picked.flatten(), minlength=6), expected).pvalue > 0.001


def test_a_token_of_no_probability_is_never_sampled():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    assert set(sample(logits, [1.0], [0], length=500)[0].tolist()) == {1, 3}


def test_a_rows_samples_depend_only_on_its_seed():
    """They do not depend on the batch's other rows or longest budget; rows of different seeds are independent."""
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    together = sample(logits, [0.8, 0.8, 0, 1.5, 0.8], [11, 12, 13, 14, 15], length=30)
    reordered = sample(logits[[3, 0]], [1.5, 0.8], [14, 11], length=200)
    assert torch.equal(reordered[0, :30], together[3]) and torch.equal(reordered[1, :30], together[0])
    a, b = sample(torch.zeros(2, 4), [1.0, 1.0], [1, 2], length=2000)
    assert chisquare(torch.bincount(4 * a + b, minlength=16)).pvalue > 0.001


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_concurrent_requests_get_the_turns_that_each_would_get_alone(generator, temperature):
    requests = random_requests(11, temperature)
    together = tokens_of(generator, requests)
    assert together == [tokens_of(generator, [request])[0] for request in requests]
    assert len({tuple(turn) for turn in together}) > 5


def test_concurrent_requests_share_batches_of_at_most_batch_size_rows(generator, model):
    sizes = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    try:
        tokens_of(generator, [TurnRequest([n + 9], 1, 0.0, n) for n in range(10)])
    finally:
        hook.remove()
    assert sizes == [4, 4, 2]


def test_a_turn_ends_with_its_first_end_of_turn_token_or_its_own_max_tokens(generator):
    limited = [TurnRequest([20 + n], n, 0.8, n) for n in (1, 2, 3, 7, 12)]
    for request, turn in zip(limited, tokens_of(generator, limited), strict=True):
        assert 1 <= len(turn) <= request.max_tokens
    requests = random_requests(4, 0.0)
    for request, turn in zip(requests, tokens_of(generator, requests), strict=True):
        generator.eos_id = turn[2]
        assert tokens_of(generator, [replace(request, cache=TrajectoryCache())]) == [turn[: turn.index(turn[2]) + 1]]


class Broken:
    """A model that runs out of memory at every call."""

    device, config = CPU, Qwen3Config(num_hidden_layers=1)

    def __call__(self, **_):
        raise RuntimeError("out of memory")


def test_an_exception_of_the_model_reaches_all_requests_and_the_generator_works_again(model, tokenizer):
    generator = TransformersGenerator(model, tokenizer, batch_size=2)
    generator.model = Broken()
    errors = generate(generator, random_requests(5, 0.0), catch=True)
    assert [str(error) for error in errors] == ["out of memory"] * 5
    generator.model = model
    assert tokens_of(generator, random_requests(1, 0.0))[0]


def test_a_model_that_ignores_its_cache_is_refused_by_name_and_any_other_leaves_no_trace(model, tokenizer):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    TransformersGenerator(model.train(), tokenizer, 2)
    assert model.training and torch.equal(torch.get_rng_state(), before)
    TransformersGenerator(copy.deepcopy(model.eval()).bfloat16(), tokenizer, 2)
    assert not model.training
    mamba = MambaForCausalLM(MambaConfig(vocab_size=70, hidden_size=16, num_hidden_layers=1, state_size=4))
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(UserError, match="MambaForCausalLM gives other .*rollout.backend=vllm") as refused:
            TransformersGenerator(mamba.to(dtype), tokenizer, 2)
        assert "\n" not in str(refused.value)


def test_a_cancelled_request_does_not_break_its_batch(generator):
    async def run():
        tasks = [asyncio.create_task(generator.generate(request)) for request in random_requests(3, 0.0)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=60)

    first, cancelled, last = asyncio.run(run())
    assert first and last and isinstance(cancelled, asyncio.CancelledError)


def test_requests_of_an_aborted_rollout_do_not_block_the_next(generator):
    (request,) = random_requests(1, 0.0)

    async def fail():
        waiting = asyncio.create_task(generator.generate(request))
        await asyncio.sleep(0)
        raise ConnectionError(waiting)

    with pytest.raises(ConnectionError):
        asyncio.run(fail())
    assert asyncio.run(asyncio.wait_for(generator.generate(request), timeout=60)).token_ids


def test_neither_a_generation_config_nor_untrained_lora_changes_a_turn(
    generator, model, policy_path, tokenizer, tmp_path
):
    shutil.copytree(policy_path, tmp_path / "hostile")
    own = GenerationConfig(repetition_penalty=3.0, do_sample=True, top_k=1, suppress_tokens=[9, 10])
    own.save_pretrained(tmp_path / "hostile")
    hostile = load_model(str(tmp_path / "hostile"), "float32").eval()
    assert hostile.generation_config.repetition_penalty == 3.0
    expected = tokens_of(generator, random_requests(4, 0.8))
    for other in (hostile, get_peft_model(copy.deepcopy(model), lora_config(2))):
        others = TransformersGenerator(other, tokenizer, batch_size=4)
        assert tokens_of(others, random_requests(4, 0.8)) == expected
