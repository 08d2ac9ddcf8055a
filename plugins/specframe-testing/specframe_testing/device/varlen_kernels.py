"""Variable-length attention: what torch's flash kernel computes, and what it refuses.

``torch.nn.attention.varlen.varlen_attn`` (with lengths since 2.12) comes down to the operator ``aten::_flash_attention_forward``,
which older code calls itself: this is that operator, and the one behind ``varlen_attn_out``. Arguments are checked as the kernel
checks them (flash_api.cpp in torch's sources): precisions, whole numbers of 32 bits, strides, head sizes, heads, pages.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

HALF = (torch.float16, torch.bfloat16)
LARGEST_HEAD, HEAD_STEP = 256, 8
"""Head sizes that the kernel takes: multiples of the step, up to the largest."""
PAGE_STEP = 256
"""Slots of a page: a multiple of it."""


def require(holds: bool, what: str) -> None:
    """Raise RuntimeError unless something holds."""
    if not holds:
        raise RuntimeError(f"flash attention on sim: expected {what}")


def checked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts_query: torch.Tensor | None,
    starts_key: torch.Tensor | None,
    seqused_k: torch.Tensor | None,
    block_table: torch.Tensor | None,
) -> None:
    """Refuse what the kernel refuses."""
    paged = block_table is not None
    require(query.dtype in HALF, f"float16 or bfloat16, got {query.dtype}")
    require(key.dtype == query.dtype and value.dtype == query.dtype, "one precision of query, key and value")
    require(query.dim() == 3, f"a query (tokens, heads, size), got {query.dim()} dimensions")
    require(key.dim() == (4 if paged else 3), f"keys of {4 if paged else 3} dimensions, got {key.dim()}")
    require(key.shape == value.shape, "keys and values of one shape")
    size = query.shape[-1]
    require(
        size <= LARGEST_HEAD and size % HEAD_STEP == 0 and key.shape[-1] == size, f"heads of a size it has, got {size}"
    )
    require(query.shape[-2] % key.shape[-2] == 0, "a number of heads that those of the keys divide")
    for one in (query, key, value):
        require(one.stride(-1) == 1, "tensors whose last dimension is contiguous")
    require(starts_query is not None and starts_key is not None, "starts of queries and of keys")
    whole = {
        "cu_seq_q": starts_query,
        "cu_seq_k": starts_key,
        "seqused_k": seqused_k,
        "block_table": block_table,
    }
    for name, counts in whole.items():
        if counts is not None:
            require(counts.dtype == torch.int32, f"{name} in int32, got {counts.dtype}")
            require(counts.is_contiguous(), f"{name} contiguous")
    assert starts_query is not None
    rows = len(starts_query) - 1
    if seqused_k is not None:
        require(seqused_k.shape == (rows,), f"seqused_k of {rows} rows, got {tuple(seqused_k.shape)}")
    if block_table is not None:
        require(seqused_k is not None, "seqused_k with block_table")
        require(key.shape[1] % PAGE_STEP == 0, f"pages of a multiple of {PAGE_STEP} slots, got {key.shape[1]}")
        require(len(block_table) == rows, f"block_table of {rows} rows, got {len(block_table)}")


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """Attend the queries of each row to its keys; return the output, log sums (H, T), and three tensors that nobody reads.

    Args:
        query: (tokens, heads, size) of all rows; ``cum_seq_q`` has where each begins.
        key, value: as the query, with as many heads as divide its; or pages of them, (pages, slots, heads, size).
        window_size_left, window_size_right: tokens seen before and after a query's own, or None, and on CUDA -1, for all.
        seqused_k: tokens of each row's keys that count, or None for all.
        block_table: the pages of each row, in order.
        num_splits: has no effect on the values.
    """
    checked(query, key, value, cum_seq_q, cum_seq_k, seqused_k, block_table)
    require(alibi_slopes is None and not dropout_p and not return_debug_mask, "no slopes, no dropout and no debug mask")
    assert cum_seq_q is not None
    assert cum_seq_k is not None
    left = -1 if window_size_left is None else window_size_left
    right = 0 if is_causal else -1 if window_size_right is None else window_size_right
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output = torch.zeros_like(query)
    sums = torch.full((query.shape[1], len(query)), torch.inf)
    bounds_query, bounds_key = cum_seq_q.tolist(), cum_seq_k.tolist()
    require(bounds_query[-1] <= len(query), "starts within the queries")
    for row, (first, last) in enumerate(itertools.pairwise(bounds_query)):
        require(last - first <= max_q, f"rows of at most max_q = {max_q} queries, got {last - first}")
        used = int(seqused_k[row]) if seqused_k is not None else bounds_key[row + 1] - bounds_key[row]
        require(used <= max_k, f"rows of at most max_k = {max_k} keys, got {used}")
        keys, values = (held(one, row, bounds_key, used, block_table) for one in (key, value))
        output[first:last], sums[:, first:last] = attended(query[first:last], keys, values, scale, left, right)
    nothing = torch.zeros(2, dtype=torch.uint64)
    return output, sums, nothing, torch.zeros((), dtype=torch.uint64), query.new_zeros(0)


def flash_out(output: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """Write what :func:`flash` returns into a tensor, and return the log sums."""
    found, sums, *_ = flash(*args, **options)
    output.copy_(found)
    return sums


def held(states: torch.Tensor, row: int, bounds: list[int], used: int, table: torch.Tensor | None) -> torch.Tensor:
    """Return a row's keys or values, (tokens, heads, size)."""
    if table is None:
        return states[bounds[row] : bounds[row] + used]
    pages = -(-used // states.shape[1])
    return states[table[row, :pages].long()].flatten(0, 1)[:used]


def attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, left: int, right: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output (T, H, D) and the log sums (H, T) of one row; a query that sees nothing gets zeros and infinity.

    The last query is at the last key.
    """
    shared = query.shape[1] // key.shape[1]
    key, value = (one.float().repeat_interleave(shared, 1) for one in (key, value))
    scores = torch.einsum("thd,shd->hts", query.float(), key) * scale
    own = torch.arange(len(query))[:, None] + len(key) - len(query)
    slot = torch.arange(len(key))
    seen = torch.ones(len(query), len(key), dtype=torch.bool)
    seen &= slot <= own + right if right >= 0 else True
    seen &= slot >= own - left if left >= 0 else True
    scores = scores.masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0)
    sums = scores.logsumexp(-1)
    return torch.einsum("hts,shd->thd", weights, value).to(query.dtype), sums.where(seen.any(-1), torch.inf)
