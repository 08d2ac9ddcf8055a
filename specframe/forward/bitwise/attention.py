"""Attention over blocks of queries and keys of one shape, one block of keys after the other.

A block in which a query sees nothing changes no bit of its output, so the number of slots does not matter. Scores and sums are in
float32. After FlashAttention (https://arxiv.org/abs/2205.14135, algorithm 1), whose running maximum and sum these are.

Letters beside the usual ones: G key heads, I blocks of Q queries, J blocks of E keys. The query heads that share a key head are
further queries of it.
"""

from __future__ import annotations

import torch

from specframe.forward.bitwise.products import columns
from specframe.forward.bitwise.tiles import by_numbers

QUERIES, KEYS = 16, 128
"""Queries and keys of a block: the queries of a round of four tokens whose heads share a key head by fours, and a short prompt."""


def attention(
    func: object,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` of (B, H, T, D) queries with (B, G, S, D) keys and values.

    Raises:
        NotImplementedError: tensors without a batch, or dropout.
    """
    if query.ndim != 4 or dropout_p:
        raise NotImplementedError
    rows, heads, length, size = query.shape
    groups, slots = key.shape[1:3]
    exact = torch.promote_types(query.dtype, torch.float32)
    folded = (query.to(exact) * (size**-0.5 if scale is None else scale)).reshape(rows, groups, -1, size)
    query_BIGQD, key_BJGED = blocks(folded, QUERIES, exact), blocks(key, KEYS, exact)
    ones = value.new_ones(()).expand(*value.shape[:-1], 1)  # the sum of weights is one more entry of the output
    value_BJGED = blocks(columns(torch.cat([value, ones], dim=-1)), KEYS, exact)
    mask_BIJGQE = masks(attn_mask, is_causal, length, slots, heads // groups, groups, exact, query.device)
    output_BIGQD = attended(query_BIGQD, key_BJGED, value_BJGED, mask_BIJGQE)
    width = value.shape[-1]
    output = (output_BIGQD[..., :width] / output_BIGQD[..., width : width + 1]).transpose(1, 2).flatten(2, 3)
    return output[:, :, : folded.shape[2]].reshape(rows, heads, length, -1).to(query.dtype)


def blocks(x_BGSD: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return (B, blocks, G, size, D): the places of each head in blocks, the last filled up with zeros."""
    rows, groups, places, width = x_BGSD.shape
    whole, rest = divmod(places, size)
    made = x_BGSD.new_zeros(rows, -(-places // size), groups, size, width, dtype=dtype)
    by_head = made.transpose(1, 2)
    by_head[:, :, :whole] = x_BGSD[:, :, : whole * size].unflatten(2, (whole, size))
    if rest:
        by_head[:, :, whole, :rest] = x_BGSD[:, :, whole * size :]
    return made


def masks(
    given: torch.Tensor | None,
    causal: bool,
    length: int,
    slots: int,
    shared: int,
    groups: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Return the additive mask (B or 1, I, J, G or 1, Q, E) of all blocks; the least finite number is what a query does not see."""
    least = torch.finfo(dtype).min
    if given is None:
        given = torch.ones(length, slots, dtype=torch.bool, device=device)
        given = given.tril() if causal else given
    given = given[(None,) * (4 - given.ndim)]
    if given.dtype == torch.bool:
        given = torch.zeros((), dtype=dtype, device=device).where(given, least)
    rows, heads = given.shape[:2]
    given = given.to(dtype).clamp(min=least).expand(-1, -1, length, slots)
    each = given[:, :, None].expand(-1, -1, shared, -1, -1) if heads == 1 else given.unflatten(1, (groups, shared))
    queries, extent = (-(-n // size) * size for n, size in ((shared * length, QUERIES), (slots, KEYS)))
    made = given.new_full((rows, each.shape[1], queries, extent), least)
    made[:, :, : shared * length, :slots] = each.flatten(2, 3)
    return made.unflatten(3, (-1, KEYS)).unflatten(2, (-1, QUERIES)).permute(0, 2, 4, 1, 3, 5)


def attended(
    query_BIGQD: torch.Tensor, key_BJGED: torch.Tensor, value_BJGED: torch.Tensor, mask_BIJGQE: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sums of values, not divided by the sums of weights, (B, I, G, Q, D)."""
    shape = query_BIGQD.shape[:-1]
    sums = query_BIGQD.new_zeros(*shape, value_BJGED.shape[-1])
    largest = query_BIGQD.new_full((*shape, 1), torch.finfo(query_BIGQD.dtype).min)
    for block in range(key_BJGED.shape[1]):
        scores = each(query_BIGQD, key_BJGED[:, block].mT) + mask_BIJGQE[:, :, block]
        before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights = by_numbers(torch.exp, scores - largest)
        sums = sums * by_numbers(torch.exp, before - largest) + each(weights, value_BJGED[:, block])
    return sums


def each(left_BIGQX: torch.Tensor, right_BGXY: torch.Tensor) -> torch.Tensor:
    """Return the products of every block of queries with its row's block of keys, each computed by itself."""
    found = left_BIGQX.new_empty(*left_BIGQX.shape[:-1], right_BGXY.shape[-1])
    for left_IGQX, right_GXY, out_IGQY in zip(left_BIGQX, right_BGXY, found, strict=True):
        for left_GQX, out_GQY in zip(left_IGQX, out_IGQY, strict=True):
            torch.bmm(left_GQX, right_GXY, out=out_GQY)
    return found
