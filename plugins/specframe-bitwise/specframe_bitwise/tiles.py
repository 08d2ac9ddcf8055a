"""Tensors cut into tiles of one shape.

Letters in addition to the usual ones: R rows of a matrix, D their length.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from specframe.devices import kinds

TILE = {False: 16, True: 128}
"""Rows of a matrix product of one shape, by :func:`is_accelerator`: as few as fill a CPU's registers, for each row costs its time;
on an accelerator as many as are computed while weights are read."""
PIECE = {False: 2**14, True: 2**19}
"""Numbers of a tile that is reduced row by row, likewise: half of what torch shares out among a CPU's threads at least; on an
accelerator 128 rows of 4,096."""

VECTOR = 64
"""Numbers that every vector loop divides evenly: two registers of 64 bytes filled with the smallest floats."""

Product = Callable[[torch.Tensor], torch.Tensor]
"""The product of a tile (rows, D) with a matrix."""

_WATCHER: ContextVar[Callable[[Product, torch.Tensor], None] | None] = ContextVar("specframe.tiles", default=None)


def is_accelerator(device: torch.device) -> bool:
    """Return whether a device computes while the host goes on. One without numbers is none."""
    kind = kinds.of(device)
    return kind.queues and kind.values


def pieces(x_RD: torch.Tensor, rows: int) -> tuple[torch.Tensor, ...]:
    """Return the rows of a matrix in chunks of ``rows``, the last filled up with zeros.

    They are copies in memory of their own, for some kernels depend on the address and the strides of what they read.
    """
    count = len(x_RD)
    padded_RD = x_RD.new_empty(-(-count // rows) * rows, *x_RD.shape[1:])
    padded_RD[:count] = x_RD
    padded_RD[count:] = 0
    return padded_RD.split(rows)


def join_tiles(outputs: list[torch.Tensor], count: int) -> torch.Tensor:
    """Return the first ``count`` rows of what came of the tiles."""
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[:count]


def tile_product(x: torch.Tensor, product: Product) -> torch.Tensor:
    """Return the product of the last dimension of a tensor with a matrix, tile by tile."""
    x_RD = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    cut = pieces(x_RD, TILE[is_accelerator(x.device)])
    if (watcher := _WATCHER.get()) is not None:
        watcher(product, cut[0])
    found = join_tiles([product(tile) for tile in cut], len(x_RD))
    return found.view(*x.shape[:-1], found.shape[-1])


@contextlib.contextmanager
def watch_tiles(watcher: Callable[[Product, torch.Tensor], None]) -> Iterator[None]:
    """Show a function one tile of each product inside the block."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def by_rows(call: Callable[[torch.Tensor], Any], x: torch.Tensor, dims: int | list[int] | None, keep: bool) -> Any:
    """Reduce, or change, a tensor along some dimensions, in chunks of one shape.

    Args:
        call: the function, for a matrix along its rows; it returns a tensor or several, of the same rows or of one number for each.
        x: any tensor.
        dims: the dimensions, or None or an empty tuple for all.
        keep: whether a reduced dimension stays, with one entry.
    """
    given = [dims] if isinstance(dims, int) else dims
    chosen = sorted({dim % x.ndim for dim in given}) if given else list(range(x.ndim))
    lead = [dim for dim in range(x.ndim) if dim not in chosen]
    moved = x.permute(*lead, *chosen)
    shape, length = moved.shape[: len(lead)], moved.shape[len(lead) :].numel()
    kept = [x.shape[dim] if dim in lead else 1 for dim in range(x.ndim)]
    back = torch.tensor([*lead, *chosen]).argsort().tolist()

    def restored(outputs: list[torch.Tensor]) -> torch.Tensor:
        whole = join_tiles(outputs, shape.numel())
        if whole.ndim == 1:
            return whole.view(kept if keep else shape)
        return whole.reshape(*shape, *moved.shape[len(lead) : -1], -1).permute(back)

    rows = max(1, PIECE[is_accelerator(x.device)] // max(1, length))
    found = [call(piece) for piece in pieces(moved.reshape(-1, length), rows)]
    if isinstance(found[0], torch.Tensor):
        return restored(found)
    return tuple(restored(list(outputs)) for outputs in zip(*found, strict=True))


def by_numbers(call: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
    """Compute a function of every number of tensors that broadcast together.

    A CPU computes most of a tensor in vectors and what is left over, or lies apart, one by one, which gives other last bits.
    Tiles are contiguous here, leave nothing over, and are too short to be shared out among threads.
    """
    if not kinds.of(given[0].device).vectors:
        return call(*given)
    tensors = torch.broadcast_tensors(*given)
    shape, count, length = tensors[0].shape, tensors[0].numel(), PIECE[is_accelerator(given[0].device)]
    flat = [tensor.reshape(-1) for tensor in tensors]
    if count % VECTOR:
        flat = [torch.nn.functional.pad(tensor, (0, -count % VECTOR)) for tensor in flat]
    found = [call(*piece) for piece in zip(*(tensor.split(length) for tensor in flat), strict=True)]
    return join_tiles(found, count).view(shape) if found else call(*given)
