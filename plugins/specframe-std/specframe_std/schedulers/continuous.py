"""Batches in which a finished row is replaced at once."""

from __future__ import annotations

from specframe.contracts.pool import Pool
from specframe.contracts.round import Batch, Sequence, State
from specframe.errors import OptionError, literal
from specframe.value_checks import whole

PLACES = 4096
"""Rows times tokens of a piece beside them: as many places as models read of prompts in one forward."""


class Continuous:
    """Replaces a finished row at once by the next waiting prompt, except when that would pass over live rows twice.

    A prompt longer than a piece is read in pieces, a round of the others between two of them, so that nobody waits for long. With
    ``mixed=on`` all of a prompt but its last token is read in the rounds of the others, a piece in each.

    Options:
        piece: tokens of a prompt read between two rounds, or in one of them, at least 1; there fewer, where rows are many.
        mixed: "on": prompts are read in the rounds of rows that decode, in the same forward where model and alignment let them; or
            "off".
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()

    def __init__(self, piece: int = 512, mixed: str = "off") -> None:
        if mixed not in ("on", "off"):
            raise OptionError(f"mixed: expected 'on' or 'off', got {literal(mixed)}")
        self._piece, self._mixed = whole("piece", piece, 1), mixed == "on"

    def rows(self, batch_size: int) -> int:
        """One row per place in the batch."""
        self._batch_size = batch_size
        return batch_size

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return the prompts that just found a place, or what is left of them, or else all rows that decode."""
        decoding = [sequence for sequence in pool.live if sequence.ready]
        passed_over = any(sequence.waited for sequence in decoding)
        if passed_over and not self._mixed:
            return pool.batch(decoding)
        reading = self._reading(pool) or pool.admit(self._batch_size - len(pool.live))
        if self._mixed and decoding and any(sequence.unread > 1 for sequence in reading):
            most = PLACES // (len(decoding) + len(reading))
            return pool.batch(decoding, max(1, min(self._piece, most)), reading)
        if reading and not passed_over:
            return pool.batch(reading, self._piece if decoding else None)
        return pool.batch(decoding) if decoding else None

    def _reading(self, pool: Pool) -> list[Sequence]:
        """Return the sequences whose prompts are to be read: forks start from others' rows."""
        return [
            one for one in pool.live if one.state is State.READING or (one.state is State.WAITING and not one.parent)
        ]
