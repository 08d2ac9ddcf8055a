"""The layout of rows of any lengths, in which nothing is ever moved."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from specframe.contracts.cache import KVStore, Placement, Written
from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch, Kept
from specframe.devices.kinds import numbers, on_device


class RaggedLayout:
    """Slot = position. Padding goes to a spare slot past the last, which no query reaches.

    Args:
        store: the cache's store, which can write any slot.
        rows: rows of the cache; places do not depend on it.
        capacity: slots per row, without the spare one.
    """

    static = True
    """Rows that have all tokens fed get their places from ``lengths_B`` alone: several forwards can be recorded as one."""

    def __init__(self, store: KVStore, rows: int, capacity: int) -> None:
        self._store, self._spare = store, capacity

    def arrange(self, batch: Batch) -> None:
        """Let the store follow the batch."""
        self._store.arrange(batch.sequences)

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return slots equal to positions; the nodes of a tree take the slots after each other, whatever their depth."""
        device, start, end, even = batch.lengths_B.device, block.start, block.end, batch.even
        over, longest = passes_over(batch, block), batch.longest if even is None else even
        key_index_1S, written = numbers(0, longest + end, device), partial(slots_written, batch, block)
        if block.parents_BT is not None:
            slots_BT = batch.positions(start, block.width)
            index_BT = batch.lengths_B[:, None] + start + block.depth_BT()
            key_index_BS = key_index_1S.repeat(len(batch), 1).scatter_(1, slots_BT, index_BT)
            return Placement(index_BT, slots_BT, index_BT, key_index_BS, sees_BTT=block.sees_BTT, written=written)
        if even is not None and even + start >= 0 and not over:
            index_BT = numbers(even + start, even + end, device, len(batch.sequences))
            even_of = (index_BT, index_BT, key_index_1S)
            return Placement(index_BT, index_BT, index_BT, key_index_1S, True, even_of=even_of, written=written)
        slots_BT = index_BT = batch.positions(start, block.width)
        if min(batch.least.tolist()) + start < 0:
            slots_BT = index_BT.where(index_BT >= 0, self._spare)
        if over:
            slots_BT = slots_BT.where(on_device(block.real, device).bool(), self._spare)
        return Placement(index_BT, slots_BT, index_BT, key_index_1S, in_order=True, written=written)

    def commit(self, batch: Batch, kept: Kept) -> None:
        """Move the nodes of a path to the row's end; a chain's tokens are there already."""
        if kept.path_BT is not None:
            first_B1, width = batch.lengths_B[:, None], kept.path_BT.shape[1]
            self._store.move(first_B1 + kept.path_BT, first_B1 + torch.arange(width, device=first_B1.device))


def passes_over(batch: Batch, block: Block) -> bool:
    """Return whether a block of rows' own tokens has some that are not real: they are cached in some rows, but not in all."""
    if block.counts is None or block.end > 0:
        return False
    return bool((block.counts < (batch.lengths + block.end).clip(0, block.width)).any())


def slots_written(batch: Batch, block: Block) -> Written:
    """Return the slots of a block's tokens; what a chain feeds of a row's own tokens is committed, with all tokens before it."""
    first, end = np.maximum(batch.lengths + block.start, 0), np.maximum(batch.lengths + block.end, 0)
    if block.counts is not None and block.end <= 0:
        first = end - np.minimum(block.counts, end)
    own = block.end if block.parents_BT is None else block.start
    return Written(first, end, batch.lengths + min(own, 0))
