"""Matrix products in tiles of one shape: every row of a product is computed as if it had the same number of neighbours.

Letters in addition to the usual ones: R rows, D their length, E experts, N entries of an output row.
"""

from __future__ import annotations

from typing import Any

import torch

from specframe.devices import kinds
from specframe_bitwise.tiles import TILE, by_numbers, is_accelerator, tile_product

COLUMNS = 16
"""Columns that fill a register of 64 bytes."""


def times(left_RD: torch.Tensor, right_DN: torch.Tensor) -> torch.Tensor:
    """Return the product of a tile with a matrix, computed in whole vectors of its columns."""
    right_DN, width = columns(right_DN), right_DN.shape[1]
    return torch.mm(left_RD, right_DN)[:, :width]


def columns(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with zeros after its last dimension, up to a whole number of vectors.

    A CPU computes the columns that are left over by rows, in another way for the last rows than for the first.
    """
    beyond = -x.shape[-1] % COLUMNS
    return torch.nn.functional.pad(x, (0, beyond)) if beyond else x


def linear(func: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.nn.functional.linear``."""
    return tile_product(x, lambda tile: func(tile, weight, bias))


def addmm(func: Any, bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, **factors: Any) -> torch.Tensor:
    """``torch.addmm``."""
    if bias.ndim > 1 and len(bias) > 1:  # a row of it for each row: added afterwards
        product = tile_product(x, lambda tile: times(tile, weight))
        return bias * factors.get("beta", 1) + product * factors.get("alpha", 1)
    if weight.shape[1] % COLUMNS and not factors:
        return tile_product(x, lambda tile: func(columns(bias), tile, columns(weight))[:, : weight.shape[1]])
    return tile_product(x, lambda tile: func(bias, tile, weight, **factors))


def matmul(func: Any, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``torch.matmul`` and ``torch.mm`` of any tensor and a matrix, and of tensors whose product has one term in each sum.

    Raises:
        NotImplementedError: any other product.
    """
    if other.ndim == 2 and x.ndim > 1:
        return tile_product(x, lambda tile: times(tile, other))
    if x.ndim == 2 and other.ndim > 2:
        return matmul(func, other.mT, x.mT).mT
    if x.ndim > 1 and other.ndim > 1 and x.shape[-1] == 1:
        return by_numbers(torch.mul, x, other)
    raise NotImplementedError


def grouped_product(
    func: Any, x_RD: torch.Tensor, weight_EDN: torch.Tensor, offs: torch.Tensor | None = None, *rest: Any, **more: Any
) -> torch.Tensor:
    """``torch.nn.functional.grouped_mm`` of rows in groups, each with an expert of its own.

    ``offs`` (E,) has the ends of the groups.

    Each group is padded to whole tiles. How many tiles there are at most follows from the number of rows, so nothing waits for the
    groups' sizes, but where looking costs nothing.

    Raises:
        NotImplementedError: groups of columns, or with a bias.
    """
    if (
        offs is None
        or x_RD.ndim != 2
        or weight_EDN.ndim != 3
        or (rest and rest[0] is not None)
        or more.get("bias") is not None
    ):
        raise NotImplementedError
    count, experts, rows = len(x_RD), len(weight_EDN), TILE[is_accelerator(x_RD.device)]
    ends_E = offs.long()
    sizes_E = ends_E.diff(prepend=ends_E.new_zeros(1))
    tiles_E = (sizes_E + rows - 1) // rows
    last_E = tiles_E.cumsum(0)
    place_R = torch.arange(count, device=x_RD.device)
    expert_R = torch.searchsorted(ends_E, place_R, right=True).clamp(max=experts - 1)
    place_R = ((last_E - tiles_E) * rows - (ends_E - sizes_E))[expert_R] + place_R
    most = min(count, experts + count // rows)
    expert_M = torch.searchsorted(last_E, torch.arange(most, device=x_RD.device), right=True).clamp(max=experts - 1)
    padded = x_RD.new_zeros(most * rows, x_RD.shape[1])
    padded[place_R] = x_RD
    tiles = padded.split(rows)
    if not kinds.of(x_RD.device).queues:
        used = int(last_E[-1])
        found = [times(tile, weight_EDN[e]) for tile, e in zip(tiles, expert_M[:used].tolist(), strict=False)]
    else:
        found = [
            times(tile, weight_EDN.index_select(0, e)[0]) for tile, e in zip(tiles, expert_M.split(1), strict=True)
        ]
    return torch.cat(found)[place_R] if found else x_RD.new_empty(0, weight_EDN.shape[2])
