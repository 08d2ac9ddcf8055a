"""Batches that start together and end together."""

from __future__ import annotations

from specframe.contracts.round import Batch
from specframe.engine.pool import Pool


class Fixed:
    """Fills a batch, decodes it to the end, then fills the next; finished rows leave at once."""

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()

    def rows(self, batch_size: int) -> int:
        """One row per place in the batch."""
        self._batch_size = batch_size
        return batch_size

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return the unfinished rows of the current batch, or a new batch."""
        sequences = pool.live or pool.admit(self._batch_size)
        return pool.batch(sequences) if sequences else None
