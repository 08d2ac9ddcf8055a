"""A KV backend whose stores see to it that every sequence they make room for is released, once."""

from __future__ import annotations

from typing import Any

import torch
from specframe_std.kv.slab import Slab, SlabStore

from specframe.contracts.round import Sequence

HELD: list[tuple[PairedStore, Sequence]] = []
"""What has room in any store."""


class Paired(Slab):
    """A slab with strict stores."""

    def open(self, shapes: Any, rows: int, capacity: int, device: torch.device) -> PairedStore:
        """Return a store."""
        return PairedStore(shapes, rows, capacity + 1, device)


class PairedStore(SlabStore):
    """Has room for a sequence once, and releases what it has room for."""

    def reserve(self, sequence: Sequence, tokens: int) -> int:
        """Make room for a sequence that has none."""
        assert (self, sequence) not in HELD, "room for a sequence that has some"
        assert not sequence.finished, "room for a sequence that has ended"
        assert sum(store is self for store, _ in HELD) < self.rows, "more sequences than rows"
        HELD.append((self, sequence))
        return super().reserve(sequence, tokens)

    def release(self, sequence: Sequence) -> None:
        """Release a sequence that has room."""
        assert (self, sequence) in HELD, "a sequence without room is released"
        HELD.remove((self, sequence))
        super().release(sequence)
