"""Attention under a mask, as strict as CUDA's kernel where the mask lies in memory."""

from __future__ import annotations

from typing import Any

import torch

WORD = 16
"""Bytes that the kernel reads at once."""


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *others: Any,
    **options: Any,
) -> torch.Tensor:
    """Attend on the CPU.

    Raises:
        RuntimeError: the mask begins between two words, which on CUDA ends every later call of the process in an error.
    """
    if attn_mask is not None and attn_mask.storage_offset() * attn_mask.itemsize % WORD:
        raise RuntimeError(
            f"misaligned address: the mask begins {attn_mask.storage_offset()} numbers of {attn_mask.itemsize} bytes into its"
            f" memory: expected a multiple of {WORD} bytes"
        )
    return torch.ops.aten.scaled_dot_product_attention.default(query, key, value, attn_mask, *others, **options)
