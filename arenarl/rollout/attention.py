"""Attention without what makes transformers' own slow or large here, the figures the same.

On a CPU: wherever there is a mask, transformers copies keys and values for every query head that shares them, because a
GPU's fast kernels cannot share them there. A CPU's can, and the copies are most of what a decoding step of a small
policy costs.

On a GPU: where there is none, transformers has them shared, which in float32 only torch's plain kernel can; that one
holds all T² scores of every head. Copies, of T vectors a head, let a fused kernel do it.
"""

from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward


def prepare_attention() -> None:
    """Models that this process runs attend as above. To be called before the first one runs."""
    AttentionInterface.register("sdpa", partial(attend, on_gpu=torch.cuda.is_available()))


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    on_gpu: bool,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Queries (B, heads, T, D), keys and values (B, KV heads, S, D) → (B, T, heads, D), and no weights.
    Without a mask S is T, or T is 1."""
    sharing, is_masked = query.shape[1] // key.shape[1], attention_mask is not None
    is_plain = sharing > 1 and others.get("position_bias") is None
    if is_plain and is_masked and not on_gpu:
        attended = scaled_dot_product_attention(
            query, key, value, attention_mask, dropout, scale=scaling, enable_gqa=True
        )
    elif is_plain and not is_masked and on_gpu and query.dtype == torch.float32:
        key, value = repeat_kv(key, sharing), repeat_kv(value, sharing)
        attended = scaled_dot_product_attention(
            query, key, value, None, dropout, is_causal=query.shape[2] > 1, scale=scaling
        )
    else:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
    return attended.transpose(1, 2).contiguous(), None
