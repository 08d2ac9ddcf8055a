"""Which row of a fixed set holds which sequence."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Rows

import attrs
import numpy as np
import torch

from specframe.contracts.round import Sequence, SequenceState
from specframe.devices.kinds import on_device

JOINING = SequenceState.READING, SequenceState.STARTING
"""The states of a batch that does not decode yet."""


ASTRAY = "rows were being moved"
"""The note of errors that came while rows were moved: the map has the new places, and tensors may have the old ones."""


def rows_unknown(error: BaseException) -> bool:
    """Return whether any sequence's row may hold what another's held, because an error came while rows were moved."""
    return ASTRAY in getattr(error, "__notes__", ())


@attrs.frozen
class Moves:
    """Rows to copy: row ``destinations[i]`` takes what row ``sources[i]`` held. All copies happen at once."""

    destinations: list[int] = attrs.Factory(list)
    sources: list[int] = attrs.Factory(list)
    fresh: list[int] = attrs.Factory(list)
    """Rows now held by a sequence that had none: what they hold means nothing."""
    forked: list[int] = attrs.Factory(list)
    """Rows now held by a sequence that had none and start as copies of their parent's row, as far as the prompt goes."""

    def apply(self, *tensors: torch.Tensor, axis: int = 0) -> None:
        """Move rows of device tensors along ``axis``. After an error rows are unknown: some tensors have moved, others not."""
        if not self.sources:
            return
        try:
            for device, group in by_device(tensors).items():
                destinations, sources = on_device([self.destinations, self.sources], device)
                for tensor in group:
                    tensor.index_copy_(axis, destinations, tensor.index_select(axis, sources))
        except RuntimeError as error:
            error.add_note(ASTRAY)
            raise

    def apply_host(self, *arrays: np.ndarray) -> None:
        """Move rows of host arrays along their first axis."""
        if self.sources:
            for array in arrays:
                array[self.destinations] = array[self.sources]


IN_PLACE = Moves()
"""No moves, as most rounds have them."""


class RowMap:
    """The row map: rows 0 to ``rows`` - 1, and the sequence in each. A batch has adjacent rows, from the first on when it decodes.

    Whatever keeps data per row (the pool's state, a KV store, an alignment's paddings) has a row map of its own and follows
    the batch with the moves it returns. A finished sequence's row is free without a call, unless forks have yet to copy it.

    Args:
        rows: how many there are.
        anywhere: let a batch that does not decode yet have the rows that move the fewest others, and stay there when it joins the
            others: a sequence in place of a finished one then moves no row. Its rows are those from ``first`` on.
    """

    def __init__(self, rows: int, anywhere: bool = False) -> None:
        self._anywhere, self.first = anywhere, 0
        self._row: list[Sequence | None] = [None] * rows
        self._row_of: dict[int, int] = {}
        self._batch: list[Sequence] = []

    def row(self, sequence: Sequence) -> int | None:
        """Return the row a sequence has, or None when it never had one."""
        return self._row_of.get(id(sequence))

    def order(self, wanted: Rows[Sequence], first: int | None = None) -> list[Sequence]:
        """Return ``wanted`` in the order that moves the fewest rows; ``first``: their first row, if they do not choose it."""
        first, count, chosen = self._window(wanted) if first is None else first, len(wanted), {id(s) for s in wanted}
        kept = {row: s for row, s in enumerate(self._row[first : first + count]) if s is not None and id(s) in chosen}
        staying = {id(s) for s in kept.values()}
        others = iter([s for s in wanted if id(s) not in staying])
        return [kept[row] if row in kept else next(others) for row in range(count)]

    def _window(self, batch: Rows[Sequence]) -> int:
        """Return the first row for a batch."""
        if len(batch) > len(self._row):
            raise ValueError(f"{len(self._row)} rows cannot hold a batch of {len(batch)}")
        if not self._anywhere or not batch or batch[0].state not in JOINING:
            return 0
        count, chosen = len(batch), {id(s) for s in batch}
        # a sequence in one of its rows has to leave, and one of its own in another row has to come
        cost = [0 if s is None or s.gone else -1 if id(s) in chosen else 1 for s in self._row]
        return min(range(len(cost) - count + 1), key=lambda first: sum(cost[first : first + count]))

    def arrange(self, batch: Rows[Sequence]) -> Moves:
        """Give ``batch`` adjacent rows in the order given and return the moves that this takes.

        Raises:
            ValueError: when the live sequences outnumber the rows.
        """
        if self._batch is batch:
            return IN_PLACE
        before = list(self._row)
        row_of = self._row_of
        chosen = {id(s) for s in batch}
        self.first = self._window(batch)
        own = range(self.first, self.first + len(batch))
        after: list[Sequence | None] = [None] * len(before)
        after[own.start : own.stop] = batch
        displaced = []
        for row, occupant in enumerate(before):
            if occupant is None or occupant.gone or id(occupant) in chosen:
                continue
            if row in own:
                displaced.append(occupant)
            else:
                after[row] = occupant
        free = (row for row, occupant in enumerate(after) if occupant is None)
        for occupant in displaced:
            place = next(free, None)
            if place is None:
                others = sum(s is not None and not s.gone and id(s) not in chosen for s in before)
                raise ValueError(f"{len(before)} rows cannot hold a batch of {len(batch)} and {others} other sequences")
            after[place] = occupant
        self._row, self._batch = after, batch if isinstance(batch, list) else list(batch)
        self._row_of = {id(s): row for row, s in enumerate(after) if s is not None}
        return self._moves(row_of)

    def _moves(self, row_of: dict[int, int]) -> Moves:
        """Return the moves from the sequences' old rows to their new rows."""
        moves = Moves()
        for row, sequence in enumerate(self._row):
            source = None if sequence is None else row_of.get(id(sequence))
            if sequence is None or source == row:
                continue
            if source is None:
                source = row_of.get(id(sequence.parent)) if sequence.parent else None
                (moves.fresh if source is None else moves.forked).append(row)
            if source is not None:
                moves.destinations.append(row)
                moves.sources.append(source)
        return moves


def by_device(tensors: Iterable[torch.Tensor]) -> dict[torch.device, list[torch.Tensor]]:
    """Return tensors by the device that they are on, in their order."""
    found: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device, []).append(tensor)
    return found
