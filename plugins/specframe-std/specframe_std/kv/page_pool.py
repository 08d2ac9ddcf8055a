"""Contiguous rows, after each other in one pool: a row has as many slots as it uses, and some to grow into."""

from __future__ import annotations

import attrs
import numpy as np
import torch

from specframe.contracts.cache import KVShape
from specframe.contracts.round import Sequence
from specframe.devices.kinds import numbers
from specframe_std.kv.pooled import PooledRow, SharedPoolStore, spread
from specframe_std.kv.quantised import Quantisable
from specframe_std.kv.slot_tables import FILLER

SPARE = 32
"""Slots that a row gets beyond those it needs, at least: some rounds' tokens, so that not every round lays rows out anew."""

SHARE = 8
"""A row that needs n slots gets n / ``SHARE`` more to grow into: a long row costs more to copy."""


LOOSE = 16
"""A pool of rows with n slots has n / ``LOOSE`` more: a pool that fits exactly would be copied for every row that grows. A pool
with twice as many beyond is made smaller."""


class PagePool(Quantisable):
    """Gives each row contiguous slots of one pool, which grow with its sequence and are free when it ends.

    Options:
        dtype: of the target's keys and values: "model", the model's own; "int8" or "fp8", with one scale for each token and head.
        draft_dtype: of the keys and values of drafts.
    """

    offers = frozenset({"scatter", "append", "move", "gather", "dense", "pooled", "bounded"})

    def open_packed(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> PoolStore:
        """Return a store without a slot; ``rows`` and ``capacity`` do not bound it."""
        return PoolStore(shapes, rows, capacity, device)


@attrs.define(eq=False)
class PoolPart(PooledRow):
    """A row in the pool: ``size`` slots from ``start`` on."""

    start: int = 1
    size: int = 0

    @property
    def stop(self) -> int:
        """The slot after its last."""
        return self.start + self.size


class PoolStore(SharedPoolStore[PoolPart]):
    """Rows of a pool. Where a row finds no room to grow, all rows are placed anew, without gaps and with room for each."""

    def most_bytes(self, rows: int, capacity: int) -> tuple[int, int]:
        """Return the bytes of a pool whose rows all found it too small at their ends, and of what copying them takes."""
        slots = 1 + rows * roomy(capacity)
        return self.memory.sizes(slots + slots // LOOSE)

    def _admit(self, sequence: Sequence, tokens: int, waits: bool) -> tuple[PoolPart, int]:
        return PoolPart(sequence, tokens), 0  # its slots come with its first forward

    def _begin(self, row: PoolPart, parent: PoolPart) -> None:
        count = self._inherited(row, parent)
        self._fit([row], np.zeros(1, dtype=np.int64), np.array([count]))
        self._clear()
        self.memory.copy(parent.start + np.arange(count), row.start + np.arange(count))

    def _fit(self, rows: list[PoolPart], first: np.ndarray, end: np.ndarray) -> None:
        needed = {id(row): int(slots) for row, slots in zip(rows, end, strict=True)}
        short = [row for row in rows if needed[id(row)] > self._width(row)]
        if not all(self._extend(row, needed[id(row)]) for row in short):
            self._lay_out(needed)

    def _extend(self, row: PoolPart, needed: int) -> bool:
        """Give a row more slots where it is, or a new one free slots; return whether there are any."""
        wanted = roomy(needed)
        if row.size:
            free = min((one.start for one in self._laid() if one.start >= row.stop), default=self.memory.count)
            if free - row.start < wanted:
                return False
        else:
            ends = [1, *(one.stop for one in self._laid())]
            starts = [*(one.start for one in self._laid()), self.memory.count]
            gap = next((end for end, start in zip(ends, starts, strict=True) if start - end >= wanted), None)
            if gap is None:
                return False
            row.start = gap
        self._fresh.append(np.arange(row.stop, row.start + wanted))
        row.size, self._table_BS = wanted, None
        return True

    def _laid(self) -> list[PoolPart]:
        """Return the rows that have slots, in their order in the pool."""
        return sorted((row for row in self._rows.values() if row.size), key=lambda row: row.start)

    def _lay_out(self, needed: dict[int, int]) -> None:
        """Place all rows anew, with room to grow for those that need more slots.

        What may lack memory comes before any row moves, so a row never loses what it holds.
        """
        self._sweep()
        self._clear()
        rows = [*self._laid(), *(row for row in self._rows.values() if not row.size)]
        held = [row.size for row in rows]
        sizes = [max(row.size, roomy(needed[id(row)])) if id(row) in needed else row.size for row in rows]
        starts = 1 + np.cumsum([0, *sizes])
        groups, places = spread(held)
        sources = np.array([row.start for row in rows])[groups] + places if held else places
        total = int(starts[-1])
        loose = total + total // LOOSE
        if self.memory.count < total:
            self.memory.resize(loose)
        if len(places):
            self.memory.copy(sources, starts[groups] + places)
        for row, start, size in zip(rows, starts.tolist(), sizes, strict=False):
            row.start, row.size = start, size
        self._table_BS = None
        groups, places = spread([size - before for size, before in zip(sizes, held, strict=True)])
        self._fresh.append(starts[groups] + np.array(held)[groups] + places)
        if self.memory.count > total + 2 * total // LOOSE:
            self.memory.resize(loose)

    def _numbers(self, rows: list[PoolPart]) -> np.ndarray:
        return np.array([(row.start, row.size) for row in rows])

    def _table(self, rows: list[PoolPart], numbers_BN: torch.Tensor) -> torch.Tensor:
        starts_B1, sizes_B1 = numbers_BN[:, :1], numbers_BN[:, 1:]
        slots_1S = numbers(0, max(map(self._width, rows)), self.device)
        return (starts_B1 + slots_1S).where(slots_1S < sizes_B1, FILLER)

    def _in_place(self, rows: list[PoolPart], extent: int) -> slice | None:
        row = rows[0]
        return slice(row.start, row.start + extent) if len(rows) == 1 and extent <= row.size else None

    def _requeue(self, row: PoolPart) -> None:
        """Do nothing: where no live row is, is free."""

    def _width(self, row: PoolPart) -> int:
        return row.size


def roomy(slots: int) -> int:
    """Return the slots of a row that needs ``slots`` of them."""
    return slots + max(SPARE, slots // SHARE)
