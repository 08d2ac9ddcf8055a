"""Attention over a cache of grouped heads, registered with transformers' attention interface.

transformers' own ``sdpa`` copies keys and values once per query head whenever a mask is given. Here the query heads that share
a key head become further queries of that head, so nothing is copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "specframe_sdpa"


def grouped_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend (B, H, T, D) queries to (B, G, S, D) keys and values, G dividing H, under an additive (B, 1, T, S) mask.

    Returns:
        (B, T, H, D) and None, as transformers' attention functions do.
    """
    if attention_mask is None or options.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    rows, heads, length, size = query.shape
    shared = heads // key.shape[1]
    if shared > 1:
        query = query.reshape(rows, key.shape[1], shared * length, size)
        if length > 1:  # a single query's mask row holds for all that share the head
            attention_mask = attention_mask.repeat(1, 1, shared, 1)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(rows, heads, length, value.shape[-1]).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_sdpa)


@contextlib.contextmanager
def attending(config: Any) -> Iterator[None]:
    """Use :func:`grouped_sdpa` inside the block for a model that is set to ``sdpa``; any other choice is left alone."""
    chosen = config._attn_implementation
    if chosen != "sdpa":
        yield
        return
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = chosen
