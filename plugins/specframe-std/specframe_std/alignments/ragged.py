"""Every row its own length; nothing is ever moved."""

from __future__ import annotations

import numpy as np
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Draft, Verdict
from specframe.contracts.round import Batch
from specframe.forward.run import Run


class Ragged:
    """A token's slot is its position; a rejected token is overwritten by the next round."""

    lossless = True
    requires = frozenset({"scatter"})
    scheduler = "continuous"
    kv = "slab"

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def layout(self, store: KVStore, rows: int, capacity: int) -> RaggedLayout:
        """Return the layout of one cache."""
        return RaggedLayout(store, capacity)

    def commit(self, batch: Batch, draft: Draft, verdict: Verdict) -> Verdict:
        """Keep everything: what was rejected lies beyond the row's length, where no query looks."""
        return verdict


class RaggedLayout:
    """Slot = position. Padding goes to a spare slot past the last, which no query reaches."""

    static = True
    """Rows that have all tokens fed get their places from ``lengths_B`` alone: several forwards can be recorded as one."""

    def __init__(self, store: KVStore, capacity: int) -> None:
        self._store, self._spare = store, capacity

    def arrange(self, batch: Batch) -> None:
        """Let the store follow the batch."""
        self._store.arrange(batch.sequences)

    def place(self, batch: Batch, width: int, offset: int) -> Placement:
        """Return slots equal to positions."""
        device = batch.lengths_B.device
        order_BT = batch.lengths_B[:, None] + torch.arange(offset - width, offset, device=device)
        padded = int(batch.lengths.min()) + offset < width
        slots_BT = order_BT.where(order_BT >= 0, self._spare) if padded else order_BT
        used_B = (batch.lengths_B + offset).clamp(min=0).int()
        key_order_1S = torch.arange(batch.longest + offset, device=device)[None]
        return Placement(order_BT, slots_BT, order_BT, key_order_1S, used_B)

    def keep(self, batch: Batch, kept: np.ndarray) -> None:
        """Nothing to do."""
