"""A store whose rows take slots of one pool, as many as they use: what the pool and the paged store have in common.

Tensor names carry their shape: B rows, T tokens fed per row, S slots of a row, H heads, D size of a head. A row's own slots are
numbered from 0 on; a table says which slot of the pool each of them is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

import attrs
import numpy as np
import torch
import torch.nn.functional as F

from specframe.contracts.cache import DenseView, KVShape, KVView, Placement, Written
from specframe.contracts.round import Sequence
from specframe.devices.kinds import on_device, on_host
from specframe_std.kv.slot_tables import FILLER, Slots


@attrs.define(eq=False)
class PooledRow:
    """What a store knows of one sequence."""

    sequence: Sequence
    tokens: int
    """Tokens that the sequence began with."""
    begun: bool = False
    """Whether it has been arranged."""
    stands: int = 0
    """First slots that are known to hold the sequence's own tokens, slot s the token of place s."""


Row = TypeVar("Row", bound=PooledRow)


class SharedPoolStore(ABC, Generic[Row]):
    """Rows gather their slots from the pool into a rectangle, as long as the longest row of the forward, layer by layer."""

    slots = None
    """Its memory moves: forwards over it are not recorded."""
    first = 0

    def __init__(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> None:
        self.rows, self.capacity, self.device, self.memory = rows, capacity, device, Slots(shapes, device)
        self._rows: dict[int, Row] = {}
        self._batch: list[Sequence] = []
        self._own: list[Row] = []
        """The batch's rows."""
        self._table_BS: torch.Tensor | None = None
        """The pool's slot for each of the batch's rows' slots, and one column more without any, or None if it has to be made."""
        self._fresh: list[np.ndarray] = []
        """Slots that rows were given since slots were last cleared."""
        self._coming = np.zeros(0, dtype=np.int64)
        """The batch's own cached tokens once the forward under way has written its last layer."""
        self._shape = (0, 0)
        """Rows and slots attended to."""
        self._in_one: slice | None = None
        """The pool's slots attended to, if they are contiguous."""
        self._places: dict[torch.device, torch.Tensor] = {}
        self._attended: dict[torch.device, torch.Tensor] = {}

    # ---- what pools differ in -------------------------------------------------------------------------------------

    @abstractmethod
    def _admit(self, sequence: Sequence, tokens: int, waits: bool) -> tuple[Row, int] | None:
        """Return a new row, and how many of the sequence's first tokens it holds, or None if there is no room.

        Where the sequence ``waits``, None may also say that another is just reading its first tokens.
        """

    @abstractmethod
    def _begin(self, row: Row, parent: Row) -> None:
        """Give a fork its parent's tokens."""

    @abstractmethod
    def _fit(self, rows: list[Row], first: np.ndarray, end: np.ndarray) -> None:
        """Give each row slots up to ``end``, of which it alone has those from ``first`` on; forget the table if a row is changed.

        Raises:
            torch.OutOfMemoryError: there are none left.
        """

    @abstractmethod
    def _numbers(self, rows: list[Row]) -> np.ndarray:
        """Return where rows are, as whole numbers (B, N)."""

    @abstractmethod
    def _table(self, rows: list[Row], numbers_BN: torch.Tensor) -> torch.Tensor:
        """Return the pool's slot for each slot of rows by these numbers, (B, S); where a row has no slot it is ``FILLER``."""

    @abstractmethod
    def _requeue(self, row: Row) -> None:
        """Take a row's slots back."""

    @abstractmethod
    def _width(self, row: Row) -> int:
        """Return the slots that a row has."""

    def _in_place(self, rows: list[Row], extent: int) -> slice | None:
        """Return the pool's slots that are the first ``extent`` of the only row there is, or None if rows have to be gathered."""
        return None

    def _shared(self, rows: list[Row]) -> bool:
        """Return whether other rows have slots of these rows."""
        return False

    # ---- what every store does ------------------------------------------------------------------------------------

    def widen(self, rows: int, capacity: int) -> None:
        """Serve a run of ``rows`` rows of ``capacity`` slots."""
        self.rows, self.capacity = rows, capacity
        self._batch, self._own, self._table_BS = [], [], None

    def reserve(self, sequence: Sequence, tokens: int) -> int | None:
        """Make room for a sequence that begins with ``tokens`` tokens; return how many are cached, or None without room."""
        return self._taken_in(sequence, tokens, waits=True)

    def _taken_in(self, sequence: Sequence, tokens: int, waits: bool) -> int | None:
        self._sweep()
        if (admitted := self._admit(sequence, tokens, waits)) is None:
            return None
        self._rows[id(sequence)], cached = admitted
        return cached

    def release(self, sequence: Sequence) -> None:
        """Take the slots of a sequence back."""
        if (row := self._rows.pop(id(sequence), None)) is not None:
            self._requeue(row)

    def _sweep(self) -> None:
        """Release the sequences that have ended without a word."""
        for row in [row for row in self._rows.values() if row.sequence.gone]:
            self.release(row.sequence)

    def arrange(self, sequences: list[Sequence]) -> None:
        """Make these sequences the rows; a fork begins with its parent's tokens. Nothing moves."""
        if sequences is self._batch:
            return
        for sequence in sequences:
            known = id(sequence) in self._rows
            if not known and self._taken_in(sequence, len(sequence.start_ids), waits=False) is None:
                raise torch.OutOfMemoryError("a KV store has no room for a row: out of memory")
        rows = [self._rows[id(sequence)] for sequence in sequences]
        for row in rows:
            parent = self._rows.get(id(row.sequence.parent))
            if parent is not None and not row.begun:
                self._begin(row, parent)
            row.begun = True
        self._batch, self._own, self._table_BS = sequences, rows, None

    def _inherited(self, row: Row, parent: Row) -> int:
        """Return how many of a parent's slots a fork begins with: its prompt but for the last token, or all where slots are not
        known to be places."""
        return row.tokens - 1 if parent.stands else self._width(parent)

    def expect(self, placement: Placement) -> None:
        """Take the slots that the next forward writes and attends to, and give rows those that they lack."""
        slots_BT, extent = placement.slots_BT, placement.key_index_BS.shape[1]
        written = placement.written() if placement.written else self._seen(slots_BT, extent)
        table_BS = self._fitted(written.first, written.end)
        self._coming = written.stands
        rows_BT = slots_BT if len(slots_BT) == len(self._own) else slots_BT.expand(len(self._own), -1)
        places = table_BS.gather(1, rows_BT.clamp(max=table_BS.shape[1] - 1)).flatten()
        self._places = {device: places.to(device, non_blocking=True) for device in self.memory.devices}
        self._attend(placement, table_BS)

    def _attend(self, placement: Placement, table_BS: torch.Tensor) -> None:
        """Take the slots that the next forward attends to."""
        chosen_BN, extent, last = placement.attended_BS, placement.key_index_BS.shape[1], table_BS.shape[1] - 1
        self._shape = (len(self._own), extent if chosen_BN is None else chosen_BN.shape[1])
        self._in_one = self._in_place(self._own, extent) if chosen_BN is None else None
        if self._in_one is not None:
            return
        if chosen_BN is not None:
            attended = table_BS.gather(1, chosen_BN.clamp(max=last)).flatten()
        else:
            attended = F.pad(table_BS, (0, extent - last), value=FILLER) if extent > last else table_BS
            attended = attended[:, :extent].flatten()
        self._attended = {device: attended.to(device, non_blocking=True) for device in self.memory.devices}

    def _seen(self, slots_BT: torch.Tensor, extent: int = 0) -> Written:
        """Return what is written, read from the device, where a layout does not know it on the host.

        Padding goes to slots beyond the capacity that no query attends to.
        """
        slots = on_host({"slots": slots_BT.expand(len(self._own), -1)})["slots"]
        beyond = max(self.capacity, extent)
        spare = slots >= beyond
        first = np.where(spare, beyond, slots).min(axis=1)
        end = np.where(spare, -1, slots).max(axis=1) + 1
        return Written(first, end, np.zeros_like(end))

    def _fitted(self, first: np.ndarray, end: np.ndarray) -> torch.Tensor:
        """Return the table of the batch's rows, which have slots up to ``end``, their own from ``first`` on."""
        self._fit(self._own, first, end)
        if self._table_BS is None:
            numbers, fresh = self._numbers(self._own), self._taken()
            sent = on_device(np.concatenate([numbers.ravel(), fresh]), self.device)  # one copy, not two
            if len(fresh):
                self.memory.clear(sent[numbers.size :])
            table_BS = self._table(self._own, sent[: numbers.size].view(numbers.shape))
            self._table_BS = F.pad(table_BS, (0, 1), value=FILLER)
        return self._table_BS

    def _taken(self) -> np.ndarray:
        """Return the slots that rows were given and that hold what others have left, and take them for cleared."""
        fresh = np.concatenate([np.zeros(0, dtype=np.int64), *self._fresh])
        self._fresh.clear()
        return fresh

    def _clear(self) -> None:
        """Clear these slots now: rows are about to be copied."""
        if len(fresh := self._taken()):
            self.memory.clear(fresh)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> KVView:
        """Write (B, H, T, D) keys and values and return those of all slots attended to, (B, H, S, D)."""
        parts = self.memory.layers[layer]
        for held_NHD, states in zip(parts, (keys, values), strict=True):
            held_NHD.index_copy_(0, self._places[held_NHD.device], states.transpose(1, 2).flatten(0, 1))
        if layer == len(self.memory.layers) - 1:
            for row, stands in zip(self._own, self._coming.tolist(), strict=True):
                row.stands = max(row.stands, stands)
        return self._view(*parts)

    def _view(self, keys_NHD: torch.Tensor, values_NHD: torch.Tensor) -> KVView:
        """Return what is attended to of a layer's slots."""
        return DenseView(self._gathered(keys_NHD), self._gathered(values_NHD))

    def _gathered(self, held_NHD: torch.Tensor) -> torch.Tensor:
        """Return the slots attended to of the keys, or the values, of one layer, (B, H, S, D)."""
        if self._in_one is not None:
            return held_NHD[None, self._in_one].transpose(1, 2)
        attended = self._attended[held_NHD.device]
        return held_NHD.index_select(0, attended).unflatten(0, self._shape).transpose(1, 2)

    def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """Move slots of the batch's rows in every layer at once; targets are slots that the rows have written before."""
        rows, width = len(self._own), sources_BT.shape[1]
        if targets_BT is not None and not width:
            return  # a path of no nodes
        if targets_BT is None:
            table_BS = self._fitted(np.zeros(rows, dtype=np.int64), np.full(rows, width))
            targets_BT = torch.arange(width, device=table_BS.device).expand(rows, -1)
        elif self._shared(self._own):
            seen = self._seen(targets_BT)
            table_BS = self._fitted(seen.first, seen.end)
        else:
            table_BS = self._fitted(np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64))
        last = table_BS.shape[1] - 1
        sources, targets = (
            table_BS.gather(1, slots.to(table_BS.device).expand(rows, -1).clamp(max=last)).flatten()
            for slots in (sources_BT, targets_BT)
        )
        self.memory.copy(sources, targets)

    def reserved(self) -> int:
        """Return the slots that rows have."""
        return sum(map(self._width, self._rows.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.memory.nbytes


def spread(counts: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return, for groups of ``counts`` members, each member's group, and its place there."""
    sizes = np.fromiter(counts, dtype=np.int64)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return groups, np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
