"""Operators that a GPU computes in another way than a CPU: writes by index, and attention under a mask.

Where several writes go to one place, the first of them is kept. A GPU may keep any of them. A CPU writes one after the other, so
that the last one does, and code that counts on that is right there and wrong on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

WORD = 16
"""Bytes of a mask that the kernel of attention reads at once."""


def index_copy(into: torch.Tensor, dim: int, index_N: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """``index_copy_``."""
    return aten.index_copy_(into, dim, index_N.flip(0), source.flip(dim))


def scatter(into: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """``scatter_`` of a tensor that has the shape of the index."""
    source = source[tuple(slice(count) for count in index.shape)]
    return aten.scatter_.src(into, dim, index.flip(dim), source.flip(dim))


def index_put(into: torch.Tensor, indices: list[Any], values: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """``index_put_``; where a dimension is taken whole, or chosen by a mask, or numbers are added up, it is the CPU's."""
    plain = not accumulate and all(one is not None and one.dtype not in (torch.bool, torch.uint8) for one in indices)
    if plain and indices[0].numel() > 1:
        indices = torch.broadcast_tensors(*indices)
        shape = (*indices[0].shape, *into.shape[len(indices) :])
        dims = list(range(indices[0].ndim))
        indices, values = [one.flip(dims) for one in indices], values.expand(shape).flip(dims)
    return aten.index_put_(into, indices, values, accumulate)


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
    return aten.scaled_dot_product_attention.default(query, key, value, attn_mask, *others, **options)
