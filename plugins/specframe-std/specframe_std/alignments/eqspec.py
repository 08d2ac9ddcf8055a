"""EQSPEC: realign every row after every round (Batch Speculative Decoding Done Right, arXiv 2510.22876)."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from specframe.contracts.cache import KVStore, Placement, Written
from specframe.contracts.drafts import Block, Draft, Transfer
from specframe.contracts.round import Batch, Kept
from specframe.devices.kinds import on_device
from specframe.model.run import Run
from specframe.row_map import RowMap


class EqSpec:
    """Realigns rows to the right after every round, with padding on the left: correct, but each round moves the cache."""

    needs = frozenset({"append", "move"})
    offers = frozenset({"lossless", "tree", "share", "uneven"})
    scheduler = "fixed"
    kv = "dynamic"

    def start(self, run: Run) -> None:
        """Take the target's cache."""
        self._target = run.target

    def layout(self, store: KVStore, rows: int, capacity: int) -> LeftPadded:
        """Return the layout of one cache."""
        return LeftPadded(store, rows)

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        """Drop rejected tokens at once, and shift every row until all end in the same column."""
        self._target.commit(batch, transfer.kept)
        self._target.layout.arrange(batch)
        return transfer


class LeftPadded:
    """Rows end in one common column: row i has p_i padding slots, then its c_i tokens (I1 of the paper: p_i + c_i = L).

    New tokens are appended as columns for all rows at once. After a round rows end in different columns; :meth:`arrange`
    shifts them so that they end together again, with no more padding than the longest row leaves.
    """

    static = False

    def __init__(self, store: KVStore, rows: int) -> None:
        self._store, self._row_map = store, RowMap(rows)
        self._padding = np.zeros(rows, dtype=np.int64)
        self._cached = np.zeros(rows, dtype=np.int64)

    def commit(self, batch: Batch, kept: Kept) -> None:
        """Drop all tokens but the kept ones; the cache is moved later, but for the nodes of a path."""
        padding, cached = self._rows(batch)
        if kept.path_BT is not None:
            first_B1 = batch.lengths_B[:, None] + on_device(padding, kept.path_BT.device)[:, None]
            places_K = torch.arange(kept.path_BT.shape[1], device=first_B1.device)
            self._store.move(first_B1 + kept.path_BT, first_B1 + places_K)
        np.minimum(cached, kept.host(batch), out=cached)

    def arrange(self, batch: Batch) -> None:
        """Shift rows that do not end with the others."""
        padding, cached = self._rows(batch)
        width = self.width(padding, cached)
        offsets = np.where(cached > 0, width - cached - padding, 0)
        if offsets.any():
            offsets_B1 = on_device(offsets, batch.lengths_B.device)[:, None]
            self._store.move((torch.arange(width, device=offsets_B1.device) - offsets_B1).clamp_(min=0))
        padding[:] = width - cached

    def width(self, padding: np.ndarray, cached: np.ndarray) -> int:
        """Return the columns that rows of these paddings and cached lengths are realigned to."""
        return int(cached.max())

    def place(self, batch: Batch, block: Block) -> Placement:
        """Append a column for each token; a row with fewer tokens than columns gets padding before its first.

        The nodes of a tree have columns after each other, whatever their depth.
        """
        padding, cached = self._rows(batch)
        column = int(padding[0] + cached[0])
        width = block.width
        cached[:] = np.maximum(batch.lengths + block.end, 0)
        padding[:] = column + width - cached
        device = batch.lengths_B.device
        index_BT = batch.lengths_B[:, None] + torch.arange(block.start, block.end, device=device)
        slots_BT = torch.arange(column, column + width, device=device).expand_as(index_BT)
        held_B1 = (batch.lengths_B[:, None] + block.end).clamp(min=0)  # ``cached`` on the device
        key_index_BS = torch.arange(-(column + width), 0, device=device) + held_B1
        written = partial(columns, len(batch), column, width)
        if block.parents_BT is not None:
            index_BT = batch.lengths_B[:, None] + block.start + block.depth_BT()
            key_index_BS[:, column:] = index_BT
            return Placement(index_BT, slots_BT, index_BT, key_index_BS, sees_BTT=block.sees_BTT, written=written)
        return Placement(index_BT, slots_BT, index_BT, key_index_BS, written=written)

    def _rows(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return the batch's paddings and cached lengths, as views."""
        self._store.arrange(batch.sequences)
        moves = self._row_map.arrange(batch.sequences)
        moves.apply_host(self._padding, self._cached)
        self._padding[moves.fresh] = self._cached[moves.fresh] = 0
        self._cached[moves.forked] = np.minimum(self._cached[moves.forked], batch.lengths[moves.forked] - 1)
        return self._padding[: len(batch)], self._cached[: len(batch)]


def columns(rows: int, column: int, width: int) -> Written:
    """Return the slots of rows that are all written in the same columns. No slot is known to be a token's place."""
    firsts_B = np.full(rows, column)
    return Written(firsts_B, firsts_B + width, np.zeros_like(firsts_B))
