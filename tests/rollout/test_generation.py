"""Turns of the transformers back end: sampling, batching, failures."""

import asyncio
import copy
import random
import shutil
from dataclasses import replace

import pytest
import torch
from peft import get_peft_model
from policies import generate, random_requests
from scipy.stats import chisquare
from transformers import GenerationConfig, MambaConfig, MambaForCausalLM

from arenarl.rollout.generation import PerRowSampling, TransformersGenerator, TurnRequest
from arenarl.rollout.kv_cache import BatchCache, TrajectoryCache
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


async def take_turns(generator, row, turn_tokens, temperature):
    """A trajectory of turns of at most these numbers of tokens, with three tokens of observation between them."""
    token_ids, cache, turns = [10 + row, 20, 30 + row][row % 2 :], TrajectoryCache(), []
    for number, most in enumerate(turn_tokens):
        turn = await generator.generate(TurnRequest(token_ids, most, temperature, 100 * row + number, cache))
        turns.append(turn.token_ids)
        token_ids = token_ids + turn.token_ids + [40 + row, 50, 60]
        await asyncio.sleep(0)
    return turns


def decode(model, tokenizer, is_continuous, lengths, temperatures=(0.0, 0.8), batch_size=16):
    """Return the turns of concurrent trajectories, and the number of steps that the batches took."""
    generator, steps = TransformersGenerator(model, tokenizer, batch_size, is_continuous), []
    step, rows = BatchCache.step, enumerate(lengths)

    async def run():
        trajectories = [take_turns(generator, row, turns, temperatures[row % 2]) for row, turns in rows]
        return await asyncio.wait_for(asyncio.gather(*trajectories), timeout=600)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchCache, "step", lambda *arguments: steps.append(1) or step(*arguments))
        return asyncio.run(run()), len(steps)


def drawn_lengths(rows, seed):
    rng = random.Random(seed)
    return [[rng.choice((3, 5, 8, 30)) for _ in range(rng.randint(2, 5))] for _ in range(rows)]


@pytest.mark.parametrize("seed", range(3))
def test_continuous_batches_take_few_more_steps_than_the_longest_row(model, tokenizer, seed):
    lengths = drawn_lengths(12, seed)
    (turns, steps), (_, in_whole_batches) = (decode(model, tokenizer, mode, lengths) for mode in (True, False))
    longest = max(sum(map(len, of_row)) for of_row in turns)
    assert longest <= steps <= 1.2 * longest and steps < in_whole_batches / 1.2


@pytest.mark.parametrize("batch_size", [16, 5, 1])
def test_continuous_batches_give_each_row_the_tokens_of_whole_batches(model, tokenizer, batch_size):
    exact, lengths = copy.deepcopy(model).double(), drawn_lengths(12, batch_size)
    turns, others = (decode(exact, tokenizer, mode, lengths, batch_size=batch_size)[0] for mode in (True, False))
    assert turns == others and len({repr(turn) for of_row in turns for turn in of_row}) > 20


@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.0, 2.0])
def test_sampled_frequencies_follow_the_softmax_at_the_rows_temperature(temperature):
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -torch.inf, 0.5, 1.5]])
    picked = sample(logits.expand(40, -1), [temperature] * 40, range(40), length=500)
    counts = torch.bincount(picked.flatten(), minlength=7)
    possible, expected = logits[0] > -torch.inf, torch.softmax(logits[0].double() / temperature, dim=-1)
    assert counts[~possible] == 0  # a token of no probability is never sampled
    assert chisquare(counts[possible], expected[possible] * picked.numel()).pvalue > 0.001


def test_a_rows_samples_depend_only_on_its_seed():
    """They do not depend on the batch's other rows or longest budget; rows of different seeds are independent."""
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    together = sample(logits, [0.8, 0.8, 0, 1.5, 0.8], [11, 12, 13, 14, 15], length=30)
    reordered = sample(logits[[3, 0]], [1.5, 0.8], [14, 11], length=200)
    assert torch.equal(reordered[0, :30], together[3]) and torch.equal(reordered[1, :30], together[0])
    a, b = sample(torch.zeros(2, 4), [1.0, 1.0], [1, 2], length=2000)
    assert chisquare(torch.bincount(4 * a + b, minlength=16)).pvalue > 0.001


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


@pytest.mark.parametrize("is_continuous", [False, True])
@pytest.mark.parametrize("first_failure", [0, 1, 4])
def test_an_exception_of_the_model_reaches_all_requests_and_the_generator_works_again(
    model, tokenizer, is_continuous, first_failure
):
    """The model fails as it reads the first prompts, at the first step, or under way."""

    class Broken:
        config, device, passes = model.config, CPU, 0

        def __call__(self, **inputs):
            if self.passes == first_failure:
                raise RuntimeError("out of memory")
            self.passes += 1
            return model(**inputs)

    generator = TransformersGenerator(model, tokenizer, 2, is_continuous)
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


@pytest.mark.parametrize("is_continuous", [False, True])
def test_a_cancelled_request_breaks_neither_its_batch_nor_one_that_is_under_way(model, tokenizer, is_continuous):
    exact = copy.deepcopy(model).double()
    generator = TransformersGenerator(exact, tokenizer, 4, is_continuous)

    async def run():
        slow = asyncio.create_task(take_turns(generator, 0, [10**6 if is_continuous else 30], 0.8))
        kept = asyncio.create_task(take_turns(generator, 1, [20, 20], 0.8))
        await asyncio.sleep(0.05 if is_continuous else 0)
        slow.cancel()
        return await asyncio.wait_for(kept, timeout=600), await asyncio.gather(slow, return_exceptions=True)

    turns, (error,) = asyncio.run(run())
    assert turns == decode(exact, tokenizer, False, [[1], [20, 20]], (0.8, 0.8))[0][1]
    assert isinstance(error, asyncio.CancelledError) or len(error[0]) < 10**6


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
