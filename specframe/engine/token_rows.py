"""The tokens of live sequences, a row each, on the device and on the host.

Tensor names carry their shape: R all rows, S places of a row, N rows that are written, X columns sent in one copy.
"""

from __future__ import annotations

import numpy as np
import torch

from specframe.contracts.drafts import Acceptance
from specframe.contracts.round import Batch, Sequence, bounded
from specframe.devices.kinds import on_device
from specframe.row_map import RowMap


class TokenRows:
    """Tokens, lengths, limits and random streams of rows of ``capacity`` places; what is on the device has a copy on the host."""

    @torch.inference_mode(False)  # an inference tensor would not count who writes to it
    def __init__(self, rows: int, capacity: int, device: torch.device | str) -> None:
        self._row_map = RowMap(rows, anywhere=True)
        self.batch: list[Sequence] = []
        """The sequences arranged last, whose rows are adjacent."""
        self.mixed: list[Sequence] = []
        """Those whose prompts are read in the same round, in the rows after them."""
        self.tokens_RS = torch.zeros(rows, capacity, dtype=torch.long, device=device)
        self.lengths_R = torch.zeros(rows, dtype=torch.long, device=device)
        self.streams_R = torch.zeros(rows, dtype=torch.long, device=device)
        self.lasts_R = torch.zeros(rows, dtype=torch.long, device=device)
        """The most that a row may have before its last round: one token less than its limit."""
        self.tokens = np.zeros((rows, capacity), dtype=np.int64)
        self.lengths = np.zeros(rows, dtype=np.int64)
        self.limits = np.zeros(rows, dtype=np.int64)
        self.coming: dict[int, int] = {}
        """The most tokens that rows gain by a round that has not landed, by the identity of their sequences."""
        self._views: dict[tuple[int, int], Views] = {}

    @property
    def own(self) -> slice:
        """The rows of the batch."""
        first = self._row_map.first
        return slice(first, first + len(self.batch))

    def row(self, sequence: Sequence) -> int | None:
        """Return the row of a sequence, or None if it never had one."""
        return self._row_map.row(sequence)

    def generated(self, sequence: Sequence) -> list[int]:
        """Return the tokens that a sequence has generated: those in its row, or without one those it began with."""
        if (row := self.row(sequence)) is None:
            return sequence.token_ids
        return self.tokens[row, len(sequence.request.prompt_ids) : self.lengths[row]].tolist()

    def arrange(self, sequences: list[Sequence], mixed: list[Sequence]) -> None:
        """Make these sequences the batch, in the order that moves the fewest rows, with others in the rows after them."""
        self.batch = self._row_map.order(sequences)
        self.mixed = self._row_map.order(mixed, len(sequences))
        moves, arranged = self._row_map.arrange([*self.batch, *self.mixed]), [*self.batch, *self.mixed]
        moves.apply_host(self.tokens, self.lengths, self.limits)
        rows = moves.fresh + moves.forked
        held = [arranged[row - self._row_map.first] for row in rows]
        self._write_prompts(rows, held)
        # last: the host has the tokens if memory runs out
        moves.apply(self.tokens_RS, self.lengths_R, self.streams_R, self.lasts_R)
        self._send(rows, held)

    def _write_prompts(self, rows: list[int], held: list[Sequence]) -> None:
        """Write the prompts of sequences with a new row, which is empty or a copy of the parent's row, on the host."""
        for row, sequence in zip(rows, held, strict=True):
            ids = sequence.start_ids
            self.tokens[row, : len(ids)] = ids
            self.lengths[row] = len(ids)
            self.limits[row] = sequence.limit

    def _send(self, rows: list[int], held: list[Sequence]) -> None:
        """Copy the rows of these sequences to the device."""
        if not rows:
            return
        streams = [sequence.request.stream for sequence in held]
        written = np.column_stack([rows, self.lengths[rows], streams, self.limits[rows] - 1, self.tokens[rows]])
        written_NX = on_device(written, self.tokens_RS.device)  # all in one copy
        (rows_N, lengths_N, streams_N, lasts_N), tokens_NS = written_NX[:, :4].unbind(1), written_NX[:, 4:]
        self.tokens_RS[rows_N] = tokens_NS
        self.lengths_R[rows_N] = lengths_N
        self.streams_R[rows_N] = streams_N
        self.lasts_R[rows_N] = lasts_N

    def made(
        self,
        sequences: list[Sequence],
        first: int,
        piece: int | None,
        least: int = 0,
        starts: bool = False,
        mixed: Batch | None = None,
        waiting: int = 0,
    ) -> Batch:
        """Return sequences that are arranged as a batch, and count what it reads of their prompts as read.

        Args:
            sequences: in the order of their rows.
            first: their first row.
            piece: tokens of a prefill chunk, or None for all.
            least: tokens that stay unread.
            starts: whether the rows are fresh copies of their parents' rows.
            mixed: reads prompts in the same round.
            waiting: number of sequences without a row.
        """
        views = self._views.get((first, len(sequences)))
        tokens_BS, lengths_B, streams_B, tokens, lengths, limits = views or self._viewed(first, len(sequences))
        uncached_rows = [sequence.uncached for sequence in sequences]
        uncached = max(uncached_rows)
        left = least if piece is None else max(least, uncached - piece)
        for sequence in sequences:
            sequence.uncached = min(sequence.uncached, left)
        shortest = lengths
        if self.coming:
            most_B = np.array([self.coming.get(id(sequence), 0) for sequence in sequences])
            # a row that goes on has not reached its limit; one that has ended is kept there on the device
            shortest = np.where(most_B, np.minimum(lengths + 1, limits - 1), lengths)
            lengths = np.where(most_B, np.minimum(lengths + most_B, limits - 1), lengths)
        made = Batch(
            sequences,
            tokens_BS,
            lengths_B,
            tokens,
            lengths,
            limits,
            streams_B,
            uncached > 0,
            uncached,
            left,
            starts,
            np.array(uncached_rows) if uncached else None,
            mixed,
            waiting,
        )
        return made if shortest is lengths or (shortest == lengths).all() else bounded(made, shortest)

    def append(self, batch: Batch, acceptance: Acceptance, once_more: bool) -> None:
        """Append a round's tokens on the device, beyond a row's end too: each row is longer by those accepted and one more.

        Where the next round may begin before the host has read this one, ``once_more``, rows that reach their limit stay below it,
        for they take part once more. Else they may be longer.
        """
        write(batch, acceptance.tokens_BT)
        batch.lengths_B.add_(acceptance.accepted_B + 1)  # from here on nothing takes memory, and so nothing fails
        if once_more:
            batch.lengths_B.clamp_(max=self.lasts_R[self.own])

    def rows(self, sequences: list[Sequence]) -> slice | list[int]:
        """Return the rows of sequences that have one, for arrays of the host."""
        return self.own if sequences is self.batch else [self._row_map.row(one) for one in sequences]  # type: ignore[misc]

    def take(self, rows: slice | list[int], tokens: list[list[int]]) -> np.ndarray:
        """Append on the host the tokens that each of these rows gains, up to its end; return their numbers, (B,)."""
        numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
        for row, start, ids in zip(numbers, self.lengths[rows].tolist(), tokens, strict=True):
            self.tokens[row, start : start + len(ids)] = ids
        gained = np.array([len(ids) for ids in tokens], dtype=np.int64)
        self.lengths[rows] += gained
        return gained

    def _viewed(self, first: int, count: int) -> Views:
        """Make views of adjacent rows, which are mostly those of the rounds to come."""
        rows = slice(first, first + count)
        views = self._views[first, count] = (
            self.tokens_RS[rows],
            self.lengths_R[rows],
            self.streams_R[rows],
            read_only(self.tokens[rows]),
            read_only(self.lengths[rows]),
            read_only(self.limits[rows]),
        )
        return views


Views = tuple[torch.Tensor, torch.Tensor, torch.Tensor, np.ndarray, np.ndarray, np.ndarray]
"""Tokens, lengths and random streams of some rows on the device, and their tokens, lengths and limits on the host, read-only."""


def write(batch: Batch, tokens_BT: torch.Tensor) -> None:
    """Write tokens after each row's last one, on the device."""
    width = tokens_BT.shape[1]
    if (even := batch.even) is None:
        batch.tokens_BS.scatter_(1, batch.positions(0, width), tokens_BT)
    else:
        batch.tokens_BS[:, even : even + width] = tokens_BT


def read_only(view: np.ndarray) -> np.ndarray:
    """Return a view that cannot be written to: a batch is for reading."""
    view.flags.writeable = False
    return view
