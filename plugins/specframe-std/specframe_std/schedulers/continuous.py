"""Batches in which finished rows are replaced while the others decode."""

from __future__ import annotations

from specframe.contracts.round import Batch, Sequence, SequenceState
from specframe.engine.pool import Pool
from specframe.errors import OptionError, literal
from specframe.value_checks import number, whole
from specframe_std.graphs.captured_forward import PROMPTS
from specframe_std.schedulers.refill import Refill

PLACES = 4096
"""Rows times tokens of their mixed batch's prefill chunk: as many as models read of prompts in one forward."""


class Continuous:
    """Replaces finished rows by the prompts that wait, except when that would pass over live rows twice.

    Where more prompts wait than rows are free, as many rows are filled at once as save more by one prefill than the rows lose that
    stay empty for it (:class:`Refill`).

    A prompt longer than ``piece`` is read in chunks, a round of the others between two of them, so that nobody waits for long.
    With ``mixed=on`` all of a prompt but its last token is read in the rounds of the others, a chunk in each. So it is with
    ``mixed=auto`` where one captured forward reads both, in chunks of no more tokens than those of a captured graph: such a
    forward takes about as long as the round alone, since it reads the same weights.

    Options:
        piece: tokens of a prompt read between two rounds, or in one of them, at least 1; there fewer, where rows are many.
        mixed: "on": prompts are read in the rounds of rows that decode, in the same forward where model and alignment let them;
            "off"; or "auto": where one captured forward reads both, and memory has no bound.
        wait: rounds of the batch that a forward for one prompt costs, apart from the prompt's tokens: the more, the more rows are
            filled at once. 0: each row is filled as soon as it is free.
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset({"deferred"})

    def __init__(self, piece: int = 512, mixed: str = "auto", wait: float = 0.25) -> None:
        if mixed not in ("auto", "on", "off"):
            raise OptionError(f"mixed: expected 'auto', 'on' or 'off', got {literal(mixed)}")
        self._piece, self._mixed, self._wait = whole("piece", piece, 1), mixed, number("wait", wait, 0)

    def rows(self, batch_size: int) -> int:
        """One row per place in the batch."""
        self._batch_size, self._refill = batch_size, Refill(self._wait, batch_size)
        return batch_size

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return the prompts that just found a place, or what is left of them, or else all rows that decode."""
        self._refill.look(len(pool.live))
        decoding = [one for one in pool.live if one.state is SequenceState.DECODING or one.ready]
        passed_over = [one for one in decoding if one.waited]
        captured = self._mixed == "auto" and pool.captures
        mixed = captured or self._mixed == "on"
        if passed_over and not mixed:
            return pool.batch(decoding)
        reading = self._reading(pool) or self._admitted(pool, bool(decoding))
        if mixed and decoding and any(sequence.uncached > 1 for sequence in reading):
            most = PROMPTS // len(reading) if captured else PLACES // (len(decoding) + len(reading))
            return pool.batch(decoding, max(1, min(self._piece, most)), reading)
        if reading and not passed_over:
            return pool.batch(reading, self._piece if decoding else None)
        return pool.batch(decoding) if decoding else None

    def _admitted(self, pool: Pool, decoding: bool) -> list[Sequence]:
        """Return the sequences that are given free rows now, and have a prompt to read."""
        free = self._batch_size - len(pool.live)
        if not free or (decoding and not self._refill.due(free, len(pool.waiting))):
            return []
        admitted = pool.admit(free)
        self._refill.filled(len(pool.live))
        return admitted

    def _reading(self, pool: Pool) -> list[Sequence]:
        """Return the sequences whose prompts are to be read: forks start from others' rows."""
        return [
            one
            for one in pool.live
            if one.state is SequenceState.READING or (one.state is SequenceState.WAITING and not one.parent)
        ]
