"""Batches in which a finished row is replaced at once."""

from __future__ import annotations

from specframe.pool import Pool
from specframe.types import Batch


class Continuous:
    """Replaces a finished row at once by the next waiting prompt, except when that would pass over live rows twice."""

    equal_lengths = False

    def rows(self, batch_size: int) -> int:
        """One row per place in the batch."""
        self._batch_size = batch_size
        return batch_size

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return the prompts that just found a place, or else all live rows."""
        passed_over = any(sequence.waited for sequence in pool.live)
        admitted = [] if passed_over else pool.admit(self._batch_size - len(pool.live))
        sequences = admitted or pool.live
        return pool.batch(sequences) if sequences else None
