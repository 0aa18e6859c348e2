"""The KV cache between turns changes no turn and saves the encoding of known tokens."""

import random
from contextlib import contextmanager
from dataclasses import replace

import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import generate
from tiny_models import LINEAR, SMALL
from transformers import AutoModelForCausalLM, Lfm2Config, LlamaConfig, MistralConfig, Qwen3NextConfig

from arenarl.rollout.generation import TransformersGenerator, TurnRequest
from arenarl.rollout.kv_cache import TrajectoryCache, can_cut

EXPERTS = dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16)
MODELS = {  # config, and True if its cache can be cut at any token; test_architectures.py tries all others
    "llama": (LlamaConfig(**SMALL), True),
    "sliding window": (MistralConfig(**SMALL, sliding_window=8), False),
    "recurrent states": (Qwen3NextConfig(**SMALL, **LINEAR, **EXPERTS), False),
    "convolutions": (Lfm2Config(**SMALL, layer_types=["conv", "full_attention"]), False),
    "recurrent states, and images": (tiny_models.qwen3_5(), False),
    "windows by turns, and images": (tiny_models.gemma3(), False),
}


def tokens_of(generator, requests):
    return [turn.token_ids for turn in generate(generator, requests)]


@contextmanager
def counting(model):
    """A list of the numbers of tokens that the model reads in each call, padding included."""
    read = []
    note = lambda _, args, kwargs: read.append(kwargs["input_ids"].numel())  # noqa: E731
    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield read
    finally:
        hook.remove()


trajectories = st.lists(
    st.tuples(
        st.integers(1, 4),  # the prompt's number
        st.sampled_from([0.0, 0.8]),
        # turns: budget, length of the observation, is_replaced
        st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.booleans()), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=12)
@given(trajectories=trajectories, batch_size=st.integers(1, 9))
def test_turns_equal_the_turns_without_a_cache(model, tokenizer, trajectories, batch_size):
    """This also holds if a turn is replaced after it was generated, as in tests and benchmarks."""
    generator, rng = TransformersGenerator(model, tokenizer, batch_size), random.Random(7)
    prompts = [[number * 10 + place for place in range(3 * number)] for number, *_ in trajectories]
    caches = [TrajectoryCache() for _ in trajectories]
    for turn in range(4):
        running = [row for row, (*_, turns) in enumerate(trajectories) if turn < len(turns)]
        requests = []
        for row in running:
            _, temperature, turns = trajectories[row]
            requests.append(TurnRequest(prompts[row], turns[turn][0], temperature, 100 * row + turn, caches[row]))
        generated = tokens_of(generator, requests)
        uncached = [replace(request, cache=TrajectoryCache()) for request in requests]
        assert generated == [tokens_of(generator, [request])[0] for request in uncached]
        for row, ids in zip(running, generated, strict=True):
            _, observation, is_replaced = trajectories[row][2][turn]
            turn_ids = [rng.randrange(10, 600) for _ in ids] if is_replaced else ids
            prompts[row] = [*prompts[row], *turn_ids, *(rng.randrange(10, 600) for _ in range(observation))]


def test_a_batch_reads_only_new_tokens_a_groups_prompt_once_and_no_rows_that_have_left(model, tokenizer):
    generator = TransformersGenerator(model, tokenizer, 8)
    generator.eos_id = -1
    prompt, caches = list(range(10, 60)), [TrajectoryCache() for _ in range(8)]
    with counting(model) as read:
        turns = tokens_of(generator, [TurnRequest(prompt, 5, 0.8, row, cache) for row, cache in enumerate(caches)])
    assert read == [49, 8, 8, 8, 8, 8]
    longer = [[*prompt, *turn, *range(70, 90)] for turn in turns]
    with counting(model) as read:
        generate(generator, [TurnRequest(ids, 2, 0.8, row, caches[row]) for row, ids in enumerate(longer)])
    assert read == [8 * 20, 8, 8]
    with counting(model) as read:
        turns = tokens_of(generator, [TurnRequest([9 + row], row + 1, 0.8, row) for row in range(8)])
    assert [len(turn) for turn in turns] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert read == [8, 8, 6, 6, 4, 3, 2, 1]  # rows leave when a quarter have ended


@pytest.mark.parametrize("name", MODELS)
def test_turns_of_any_architecture_equal_step_by_step_decoding_also_after_rows_left_the_batch(name, tokenizer):
    config, is_kept = MODELS[name]
    torch.manual_seed(0)
    build = tiny_models.build if config.architectures else AutoModelForCausalLM.from_config
    model = build(config).float().eval()
    generator = TransformersGenerator(model, tokenizer, 4)
    generator.eos_id = -1
    assert can_cut(model) is is_kept
    prompts, caches = [[11, 12, 13], list(range(20, 45)), [5]], [TrajectoryCache() for _ in range(3)]
    for turn in range(2):
        rows = zip(prompts, (3, 6, 5), caches, strict=True)
        turns = tokens_of(generator, [TurnRequest(prompt, budget, 0.0, 0, cache) for prompt, budget, cache in rows])
        for row, ids in enumerate(turns):
            whole = list(prompts[row])
            for token in ids:
                with torch.no_grad():
                    assert model(torch.tensor([whole])).logits[0, -1].argmax().item() == token, (turn, row)
                whole.append(token)
            prompts[row] = [*whole, *range(50, 50 + 4 * row + 1)]
    assert all(cache.token_ids for cache in caches) is is_kept
