"""Attention as it suits a CPU or a GPU is transformers' own."""

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from arenarl.rollout.attention import attend_on_cpu, attend_on_gpu, prepare_attention


class Module(torch.nn.Module):
    num_key_value_groups, is_causal = 3, True


def test_models_attend_as_it_suits_the_machine():
    prepare_attention()
    assert AttentionInterface()["sdpa"] is (attend_on_gpu if torch.cuda.is_available() else attend_on_cpu)


@pytest.mark.parametrize("queries", [1, 7])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("ours", [attend_on_cpu, attend_on_gpu])
def test_values_and_gradients_are_those_of_transformers(ours, queries, masked):
    torch.manual_seed(0)
    shapes = ((2, 6, queries, 4), (2, 2, 7, 4), (2, 2, 7, 4))
    mask = torch.rand(2, 1, queries, 7) > 0.4 if masked else None
    if masked:
        mask[..., 0] = True
    results = []
    for attend in (ours, sdpa_attention_forward):
        torch.manual_seed(1)
        tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
        attended, weights = attend(Module(), *tensors, mask, scaling=0.3)
        attended.pow(2).sum().backward()
        results.append([attended.detach(), *(tensor.grad for tensor in tensors)])
        assert weights is None
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
