"""A preallocated slot for every token of every row."""

from __future__ import annotations

import torch

from specframe.contracts.cache import KVShape
from specframe.kv.slab_store import SlabStore
from specframe_std.kv.quantised import Quantisable


class Slab(Quantisable):
    """Preallocates every slot of every row; new keys and values are written in place.

    Options:
        dtype: of the target's keys and values: "model", the model's own; "int8" or "fp8", with one scale for each token and head.
        draft_dtype: of the keys and values of drafts.
    """

    offers = frozenset({"scatter", "append", "move", "gather", "any-row", "dense", "deferred"})

    def open_packed(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> SlabStore:
        """Return a store with one spare slot per row for padding."""
        return SlabStore(shapes, rows, capacity + 1, device)
