"""Decode attention in Triton: one program reads a part of one key head's live keys for all query heads that share them.

A row's T queries and the heads that share a key head make one tile of queries, so that keys and values are read once. Where rows
are few, the live keys of each are split over several programs: each leaves its output in float32 with the logarithm (to base 2) of
the sum of its weights, and a second kernel combines these. Lengths are read on the device, so that a graph can record both.

Letters: M queries of a tile, N keys of a block, D a key's size, V a value's size, P parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specframe.contracts.cache import DenseView, KVView
from specframe_std.attention.tiles import Tiles

LOG2_E = 1.4426950408889634
"""Weights are powers of two: the device has an instruction for these alone."""
STAGES = 3
"""Blocks of keys and values that a program has at once: one is computed and two are read, as memory answers late."""
ALL = 2**30
"""The window of a layer without one: longer than any row, and far from where 32 bits end."""


def attended(
    query: torch.Tensor, view: KVView, used_B: torch.Tensor, scaling: float | None, window: int | None
) -> torch.Tensor:
    """Return the values that (B, H, T, D) queries attend to, (B, T, H, V).

    Args:
        query: the last T of ``used_B[i]`` tokens of row i; where it has fewer, the first ones are padding, and zeros come out.
        view: slot s of a row holds the row's token s.
        used_B: int32.
        scaling: of the scores, or None for 1 / sqrt(D).
        window: tokens that a query sees, itself included, or None for all up to itself.
    """
    rows, heads, fed, size = query.shape
    keys, values = view.keys, view.values
    if isinstance(view, DenseView):  # (row, slot, head, number), as pages are (page, slot, head, number)
        keys, values, table, page, slots = keys.transpose(1, 2), values.transpose(1, 2), None, 0, keys.shape[2]
    else:
        table, page, slots = view.table_BN, view.page, view.table_BN.shape[1] * view.page
    key_heads, wide = keys.shape[2], values.shape[3]
    tiles = Tiles.of(rows, key_heads, heads // key_heads * fed, slots, size, wide, keys.element_size())
    found = query.new_empty(rows, fed, heads, wide)
    whole = tiles.parts == 1
    parts = found if whole else found.new_empty(tiles.parts, *found.shape, dtype=torch.float32)
    sums = parts if whole else found.new_empty(parts.shape[:-1], dtype=torch.float32)
    scale, count = (size**-0.5 if scaling is None else scaling) * LOG2_E, rows * fed * heads
    with torch.accelerator.device_index(query.device.index):
        attend_part[rows * key_heads, tiles.tiles, tiles.parts](
            query, keys, values, used_B, used_B if table is None else table, parts, sums,
            scale, ALL if window is None else window, fed, slots, count, tiles.parts,
            *query.stride(), *keys.stride(), *values.stride(), *((1, 1) if table is None else table.stride()),
            GROUPS=key_heads, SHARED=heads // key_heads, SIZE=size, WIDE=wide, PAGE=page, SPLIT=not whole,
            M=tiles.queries, N=tiles.keys, D=tiles.key_size, V=tiles.value_size,
            num_warps=tiles.warps, num_stages=STAGES,
        )  # fmt: skip
        if not whole:
            combine[count,](parts, sums, found, count, WIDE=wide, PARTS=tiles.parts, V=tiles.value_size)
    return found


@triton.jit(do_not_specialize=["window", "fed", "slots", "count", "parts"])  # they change, and are worth no compilation
def attend_part(  # type: ignore[no-untyped-def]
    query, keys, values, used_B, table, outputs, sums, scale, window, fed, slots, count, parts,
    query_row, query_head, query_token, query_number, key_row, key_slot, key_head, key_number,
    value_row, value_slot, value_head, value_number, table_row, table_page,
    GROUPS: tl.constexpr, SHARED: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
    PAGE: tl.constexpr, SPLIT: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Attend a tile of queries to a part of the keys that it sees.

    Query m of a row and key head is that of token m // SHARED and head m % SHARED. PAGE is 0 where rows are not in pages.
    """
    row, group = tl.program_id(0) // GROUPS, tl.program_id(0) % GROUPS
    part = tl.program_id(2)
    query_M = tl.program_id(1) * M + tl.arange(0, M)
    real_M = query_M < fed * SHARED
    token_M, head_M = query_M // SHARED, group * SHARED + query_M % SHARED
    number_D, number_V = tl.arange(0, D), tl.arange(0, V)

    # what the tile's first query sees first, what its last one sees last, and this program's part of that
    used = tl.load(used_B + row)
    first = used - fed
    begin = tl.maximum(first + tl.program_id(1) * M // SHARED - window + 1, 0)
    end = tl.minimum(first + tl.minimum(((tl.program_id(1) + 1) * M - 1) // SHARED, fed - 1) + 1, slots)
    length = (tl.maximum(end - begin, 0) + parts * N - 1) // (parts * N) * N  # whole blocks
    begin += part * length
    end = tl.minimum(begin + length, end)

    query += row.to(tl.int64) * query_row
    at_MD = head_M[:, None] * query_head + token_M[:, None] * query_token + number_D[None] * query_number
    query_MD = tl.load(query + at_MD, mask=real_M[:, None] & (number_D < SIZE)[None], other=0.0)
    place_M = first + token_M
    most_M = tl.full([M], float("-inf"), tl.float32)
    sum_M = tl.full([M], 0.0, tl.float32)
    total_MV = tl.full([M, V], 0.0, tl.float32)
    for at in range(begin, end, N):
        slot_N = at + tl.arange(0, N)
        there_N = slot_N < end
        if PAGE:
            page_N = tl.load(table + row * table_row + slot_N // PAGE * table_page, mask=there_N, other=0)
            outer_N, place_N = page_N.to(tl.int64), slot_N % PAGE
        else:
            outer_N, place_N = tl.full([N], 0, tl.int64) + row, slot_N
        at_N = outer_N * key_row + place_N.to(tl.int64) * key_slot + group * key_head
        keys_ND = tl.load(
            keys + at_N[:, None] + number_D[None] * key_number,
            mask=there_N[:, None] & (number_D < SIZE)[None],
            other=0.0,
        )
        scores_MN = tl.dot(query_MD, tl.trans(keys_ND), input_precision="ieee") * scale
        seen_MN = (slot_N[None] <= place_M[:, None]) & (slot_N[None] > place_M[:, None] - window) & there_N[None]
        scores_MN = tl.where(seen_MN, scores_MN, float("-inf"))
        above_M = tl.maximum(most_M, tl.max(scores_MN, 1))
        base_M = tl.where(above_M == float("-inf"), 0.0, above_M)  # of a query that has seen nothing yet
        weights_MN = tl.exp2(scores_MN - base_M[:, None])
        shrunk_M = tl.exp2(most_M - base_M)
        at_N = outer_N * value_row + place_N.to(tl.int64) * value_slot + group * value_head
        values_NV = tl.load(
            values + at_N[:, None] + number_V[None] * value_number,
            mask=there_N[:, None] & (number_V < WIDE)[None],
            other=0.0,
        )
        sum_M = sum_M * shrunk_M + tl.sum(weights_MN, 1)
        total_MV = total_MV * shrunk_M[:, None]
        total_MV += tl.dot(weights_MN.to(values_NV.dtype), values_NV, input_precision="ieee")
        most_M = above_M

    saw_M = sum_M > 0
    at_M = part.to(tl.int64) * count + (row * fed + token_M) * (GROUPS * SHARED) + head_M
    if SPLIT:
        log_M = tl.where(saw_M, most_M + tl.log2(tl.where(saw_M, sum_M, 1.0)), float("-inf"))
        tl.store(sums + at_M, log_M, mask=real_M)
        real_M = real_M & saw_M  # other parts' outputs are not read
    found_MV = total_MV / tl.where(saw_M, sum_M, 1.0)[:, None]
    tl.store(
        outputs + at_M[:, None] * WIDE + number_V[None],
        found_MV.to(outputs.dtype.element_ty),
        mask=real_M[:, None] & (number_V < WIDE)[None],
    )


@triton.jit(do_not_specialize=["count"])
def combine(  # type: ignore[no-untyped-def]
    parts, sums, outputs, count, WIDE: tl.constexpr, PARTS: tl.constexpr, V: tl.constexpr
):  # fmt: skip
    """Combine what the parts of the keys gave one query; a query that no part has seen anything for gets zeros."""
    query = tl.program_id(0).to(tl.int64)
    part_P, number_V = tl.arange(0, PARTS), tl.arange(0, V)
    log_P = tl.load(sums + part_P.to(tl.int64) * count + query)
    most, saw_P = tl.max(log_P, 0), log_P > float("-inf")
    weight_P = tl.exp2(log_P - tl.where(most == float("-inf"), 0.0, most))
    at_PV = (part_P.to(tl.int64) * count + query)[:, None] * WIDE + number_V[None]
    parts_PV = tl.load(parts + at_PV, mask=saw_P[:, None] & (number_V < WIDE)[None], other=0.0)
    sum_ = tl.sum(weight_P, 0)
    found_V = tl.sum(weight_P[:, None] * parts_PV, 0) / tl.where(sum_ > 0, sum_, 1.0)
    tl.store(outputs + query * WIDE + number_V, found_V.to(outputs.dtype.element_ty), mask=number_V < WIDE)
