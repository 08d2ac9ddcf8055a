"""Batches in which a finished row is replaced at once."""

from __future__ import annotations

from specframe.contracts.pool import Pool
from specframe.contracts.round import Batch, Sequence, State
from specframe.values import whole


class Continuous:
    """Replaces a finished row at once by the next waiting prompt, except when that would pass over live rows twice.

    A prompt longer than a piece is read in pieces, a round of the others between two of them, so that nobody waits for long.

    Options:
        piece: tokens of a prompt read between two rounds, at least 1.
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()

    def __init__(self, piece: int = 512) -> None:
        self._piece = whole("piece", piece, 1)

    def rows(self, batch_size: int) -> int:
        """One row per place in the batch."""
        self._batch_size = batch_size
        return batch_size

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return the prompts that just found a place, or what is left of them, or else all rows that decode."""
        decoding = [sequence for sequence in pool.live if sequence.ready]
        if any(sequence.waited for sequence in decoding):
            return pool.batch(decoding)
        reading = self._reading(pool) or pool.admit(self._batch_size - len(pool.live))
        if reading:
            return pool.batch(reading, self._piece if decoding else None)
        return pool.batch(decoding) if decoding else None

    def _reading(self, pool: Pool) -> list[Sequence]:
        return [sequence for sequence in pool.live if sequence.state is State.READING]
