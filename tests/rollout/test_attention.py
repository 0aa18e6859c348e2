"""Our attention for a CPU and for a GPU equals transformers' own."""

from functools import partial

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations import sdpa_attention
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from arenarl.rollout import attention
from arenarl.rollout.attention import attend, prepare_attention


class Module(torch.nn.Module):
    num_key_value_groups, is_causal = 3, True


def test_models_use_the_attention_that_suits_the_machine():
    prepare_attention()
    ours = AttentionInterface()["sdpa"]
    assert ours.func is attend and ours.keywords == {"on_gpu": torch.cuda.is_available()}


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_masked_step_of_decoding_copies_no_keys(monkeypatch, on_gpu):
    """Each copy would be as large as the cache, for every layer and token."""
    copies = []
    for module in (attention, sdpa_attention):
        monkeypatch.setattr(module, "repeat_kv", lambda *tensors: copies.append(tensors) or repeat_kv(*tensors))
    query, cache = torch.randn(2, 6, 1, 4), torch.randn(2, 2, 7, 4)
    attend(Module(), query, cache, cache, torch.ones(2, 1, 1, 7, dtype=torch.bool), on_gpu=on_gpu)
    assert copies == []


@pytest.mark.parametrize("queries", [1, 7])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("ours", [partial(attend, on_gpu=False), partial(attend, on_gpu=True)])
def test_values_and_gradients_equal_those_of_transformers(ours, queries, masked):
    torch.manual_seed(0)
    shapes = ((2, 6, queries, 4), (2, 2, 7, 4), (2, 2, 7, 4))
    mask = torch.rand(2, 1, queries, 7) > 0.4 if masked else None
    if masked:
        mask[..., 0] = True
    results = []
    for attend_once in (ours, sdpa_attention_forward):
        torch.manual_seed(1)
        tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
        attended, weights = attend_once(Module(), *tensors, mask, scaling=0.3)
        attended.pow(2).sum().backward()
        results.append([attended.detach(), *(tensor.grad for tensor in tensors)])
        assert weights is None
    for tensor, expected in zip(*results, strict=True):
        torch.testing.assert_close(tensor, expected, atol=1e-5, rtol=1e-4)
