"""Attention on a CPU: wherever there is a mask, transformers copies keys and values for every query head that shares them, because a
GPU's fast kernels cannot share them there. A CPU's can, and the copies are most of what a decoding step of a small policy costs.
"""

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def share_keys_on_cpu() -> None:
    """Models that this process runs attend without copies, if it runs them on a CPU. To be called before the first one runs."""
    if not torch.cuda.is_available():
        AttentionInterface.register("sdpa", _attend)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Queries (B, heads, T, D), keys and values (B, KV heads, S, D) → (B, T, heads, D), and no weights."""
    if attention_mask is None or query.shape[1] == key.shape[1] or others.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, attention_mask, dropout, scale=scaling, enable_gqa=True)
    return attended.transpose(1, 2).contiguous(), None
