"""Our attention for a CPU and for a GPU equals transformers' own."""

from functools import partial

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from arenarl.rollout.attention import attend, prepare_attention


class Module(torch.nn.Module):
    num_key_value_groups, is_causal = 3, True


def test_models_use_the_attention_that_suits_the_machine():
    prepare_attention()
    ours = AttentionInterface()["sdpa"]
    assert ours.func is attend and ours.keywords == {"on_gpu": torch.cuda.is_available()}


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
    for attention in (ours, sdpa_attention_forward):
        torch.manual_seed(1)
        tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
        attended, weights = attention(Module(), *tensors, mask, scaling=0.3)
        attended.pow(2).sum().backward()
        results.append([attended.detach(), *(tensor.grad for tensor in tensors)])
        assert weights is None
    for tensor, expected in zip(*results, strict=True):
        torch.testing.assert_close(tensor, expected, atol=1e-5, rtol=1e-4)
