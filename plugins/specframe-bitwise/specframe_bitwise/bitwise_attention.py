"""Attention over blocks of queries and keys of one shape, one block of keys after the other.

Keys are taken in the order of their tokens (:mod:`specframe_bitwise.order`): block j holds the tokens from 128 j on,
whatever their slots. A block in which a query sees nothing changes no bit of its output, so the number of slots does not matter.
Scores and sums are in float32. After FlashAttention (https://arxiv.org/abs/2205.14135, algorithm 1), whose running maximum and
sum these are.

Letters in addition to the usual ones: G key heads, I blocks of Q queries, J blocks of E keys, W entries of a value. The query heads
that share a key head are further queries of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from specframe_bitwise import order
from specframe_bitwise.products import columns
from specframe_bitwise.tiles import by_numbers

QUERIES, KEYS = 16, 128
"""Queries and keys of a block: the queries of a round of four tokens whose heads share a key head by fours, and a short prompt."""

Pieces = Iterator[tuple[torch.Tensor, torch.Tensor]]
"""Blocks of keys (B, G, E, D) and of values (B, G, E, W), one after the other."""


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
    length, slots = query.shape[2], key.shape[2]
    exact = torch.promote_types(query.dtype, torch.float32)
    scaled = query.to(exact) * (query.shape[-1] ** -0.5 if scale is None else scale)
    mask = additive(attn_mask, is_causal, length, slots, exact, query.device)
    ones = value.new_ones(()).expand(*value.shape[:-1], 1)  # the sum of weights is one more entry of the output
    weighed = columns(torch.cat([value, ones], dim=-1))
    by_order = None if attn_mask is None else order.current_slots(slots)
    if by_order is not None and by_order.ndim == 3:
        sums = by_paths(scaled, key.to(exact), weighed.to(exact), mask, by_order)
    else:
        if by_order is not None:
            key, weighed = (reorder_slots(states, by_order) for states in (key, weighed))
            mask = reorder_mask(mask, by_order[:, None])
        pieces = zip(blocks(key, KEYS, exact).unbind(1), blocks(weighed, KEYS, exact).unbind(1), strict=True)
        sums = in_blocks(scaled, key.shape[1], pieces, mask)
    width = value.shape[-1]
    return (sums[..., :width] / sums[..., width : width + 1]).to(query.dtype)


def by_paths(
    query_BHTD: torch.Tensor,
    key_BGSD: torch.Tensor,
    value_BGSW: torch.Tensor,
    mask_BHTS: torch.Tensor,
    slots_BTS: torch.Tensor,
) -> torch.Tensor:
    """Return the sums of :func:`in_blocks` where each query has an order of slots of its own: it is a row for itself.

    Query heads that share a key head may come as further queries of it; they share the order of their token.
    """
    shape, tokens = query_BHTD.shape, slots_BTS.shape[1]
    shared = shape[2] // tokens
    query_BHTD = query_BHTD.unflatten(2, (shared, tokens)).flatten(1, 2)
    mask_BHTS = mask_BHTS.unflatten(2, (shared, tokens)).expand(shape[0], shape[1], -1, -1, -1).flatten(1, 2)
    sums = []
    for row, slots_TS in enumerate(slots_BTS.expand(shape[0], -1, -1)):
        query_TH1D, mask_TH1S = (x[row].transpose(0, 1)[:, :, None] for x in (query_BHTD, mask_BHTS))
        pieces = ordered_blocks(key_BGSD[row], value_BGSW[row], slots_TS)
        sums.append(in_blocks(query_TH1D, key_BGSD.shape[1], pieces, reorder_mask(mask_TH1S, slots_TS[:, None])))
    return torch.stack(sums).squeeze(3).transpose(1, 2).reshape(*shape[:3], -1)


def ordered_blocks(key_GSD: torch.Tensor, value_GSW: torch.Tensor, slots_TS: torch.Tensor) -> Pieces:
    """Yield the blocks of keys (T, G, E, D) and values (T, G, E, W) of queries with an order of slots each."""
    for slots_TE in slots_TS.split(KEYS, dim=1):
        beyond = KEYS - slots_TE.shape[1]
        key_TGED, value_TGEW = (
            torch.nn.functional.pad(states[:, slots_TE].transpose(0, 1), (0, 0, 0, beyond)).contiguous()
            for states in (key_GSD, value_GSW)
        )
        yield key_TGED, value_TGEW


def reorder_slots(states_BGSD: torch.Tensor, slots_BS: torch.Tensor) -> torch.Tensor:
    """Return keys or values with their slots in another order."""
    rows, groups, _, size = states_BGSD.shape
    return states_BGSD.gather(2, slots_BS[:, None, :, None].expand(rows, groups, -1, size))


def reorder_mask(mask_BHTS: torch.Tensor, slots_BTS: torch.Tensor) -> torch.Tensor:
    """Return a mask with its slots in another order, for each query or, with T = 1, for all."""
    mask_BHTS, slots_BHTS = torch.broadcast_tensors(mask_BHTS, slots_BTS[:, None])
    return mask_BHTS.gather(3, slots_BHTS)


def in_blocks(query_BHTD: torch.Tensor, groups: int, pieces: Pieces, mask_BHTS: torch.Tensor) -> torch.Tensor:
    """Return the weighted sums of values, not divided by the sums of weights, (B, H, T, W).

    Args:
        query_BHTD: queries, scaled.
        groups: key heads.
        pieces: blocks of keys and values that the mask's slots are in.
        mask_BHTS: additive, with one row or B, one head or H.
    """
    rows, heads, length, size = query_BHTD.shape
    folded_BGTD = query_BHTD.reshape(rows, groups, -1, size)
    mask_BIJGQE = masks(mask_BHTS, heads // groups, groups)
    sums_BIGQW = weighted_sums(blocks(folded_BGTD, QUERIES, query_BHTD.dtype), pieces, mask_BIJGQE)
    sums_BGTW = sums_BIGQW.transpose(1, 2).flatten(2, 3)[:, :, : folded_BGTD.shape[2]]
    return sums_BGTW.reshape(rows, heads, length, -1)


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


def additive(
    given: torch.Tensor | None, causal: bool, length: int, slots: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the additive mask (B or 1, H or 1, T, S); the least finite number is what a query does not see."""
    least = torch.finfo(dtype).min
    if given is None:
        given = torch.ones(length, slots, dtype=torch.bool, device=device)
        given = given.tril() if causal else given
    given = given[(None,) * (4 - given.ndim)]
    if given.dtype == torch.bool:
        given = torch.zeros((), dtype=dtype, device=device).where(given, least)
    return given.to(dtype).clamp(min=least).expand(-1, -1, length, slots)


def masks(given_BHTS: torch.Tensor, shared: int, groups: int) -> torch.Tensor:
    """Return the mask (B or 1, I, J, G or 1, Q, E) of all blocks, for ``shared`` query heads that share a key head."""
    rows, heads, length, slots = given_BHTS.shape
    each = given_BHTS[:, :, None].expand(-1, -1, shared, -1, -1)
    each = each if heads == 1 else given_BHTS.unflatten(1, (groups, shared))
    queries, extent = (-(-n // size) * size for n, size in ((shared * length, QUERIES), (slots, KEYS)))
    made = given_BHTS.new_full((rows, each.shape[1], queries, extent), torch.finfo(given_BHTS.dtype).min)
    made[:, :, : shared * length, :slots] = each.flatten(2, 3)
    return made.unflatten(3, (-1, KEYS)).unflatten(2, (-1, QUERIES)).permute(0, 2, 4, 1, 3, 5)


def weighted_sums(query_BIGQD: torch.Tensor, pieces: Pieces, mask_BIJGQE: torch.Tensor) -> torch.Tensor:
    """Return the weighted sums of values, not divided by the sums of weights, (B, I, G, Q, W)."""
    shape = query_BIGQD.shape[:-1]
    sums: torch.Tensor | None = None
    largest = query_BIGQD.new_full((*shape, 1), torch.finfo(query_BIGQD.dtype).min)
    for (key_BGED, value_BGEW), mask_BIGQE in zip(pieces, mask_BIJGQE.unbind(2), strict=True):
        scores = each(query_BIGQD, key_BGED.mT) + mask_BIGQE
        before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights = by_numbers(torch.exp, scores - largest)
        added = each(weights, value_BGEW)
        sums = added if sums is None else sums * by_numbers(torch.exp, before - largest) + added
    assert sums is not None, "attention over no keys"
    return sums


def each(left_BIGQX: torch.Tensor, right_BGXY: torch.Tensor) -> torch.Tensor:
    """Return the products of every block of queries with its row's block of keys, each computed by itself."""
    found = left_BIGQX.new_empty(*left_BIGQX.shape[:-1], right_BGXY.shape[-1])
    for left_IGQX, right_GXY, out_IGQY in zip(left_BIGQX, right_BGXY, found, strict=True):
        for left_GQX, out_GQY in zip(left_IGQX, out_IGQY, strict=True):
            torch.bmm(left_GQX, right_GXY, out=out_GQY)
    return found
