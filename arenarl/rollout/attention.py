"""Attention where transformers' own is slow or needs much memory; the results are equal up to rounding.

With a mask, transformers copies keys and values for every query head that shares them, because a GPU's fast kernels
cannot share them with a mask. A CPU's kernel can, and the copies take most of a small policy's decoding step. On a GPU,
decoding needs no copies either: the query heads that share keys become the queries of one head.

On a GPU without a mask, transformers shares keys and values. In float32 only torch's plain kernel can do that, and it
stores all T² scores of every head. Copies, of T vectors a head, allow a fused kernel.
"""

from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward


def prepare_attention() -> None:
    """Make the models of this process use `attend`. Call it before a model runs."""
    AttentionInterface.register("sdpa", partial(attend, on_gpu=torch.cuda.is_available()))


def attend(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None, *, on_gpu: bool,
    **others: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attend with queries (B, heads, T, D) to keys and values (B, KV heads, S, D). Return (B, T, heads, D), and None
    for the weights. Without a mask, either S equals T, or T is 1."""
    sharing, is_masked = query.shape[1] // key.shape[1], attention_mask is not None
    is_plain = sharing > 1 and others.get("position_bias") is None
    shape = query.shape
    if is_plain and is_masked and on_gpu and shape[2] == attention_mask.shape[1] == 1:
        query, options = query.reshape(shape[0], -1, sharing, shape[3]), {"attn_mask": attention_mask}
    elif is_plain and is_masked and not on_gpu:
        options = {"attn_mask": attention_mask, "enable_gqa": True}
    elif is_plain and not is_masked and on_gpu and query.dtype == torch.float32:
        key, value = repeat_kv(key, sharing), repeat_kv(value, sharing)
        options = {"is_causal": query.shape[2] > 1}
    else:
        others |= {"dropout": dropout, "scaling": scaling}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    attended = scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scaling, **options)
    return attended.reshape(shape).transpose(1, 2).contiguous(), None
