"""The pool of sequences, as schedulers use it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from specframe.contracts.requests import Request
from specframe.contracts.round import Batch, Sequence


class Pool(Protocol):
    """Requests that wait for a row, and the sequences that have one. The class is :class:`specframe.engine.pool.Pool`."""

    live: list[Sequence]
    """The sequences that have a row, or have been promised one."""
    rows: int
    """Sequences that may be live at once."""
    latest: Batch | None
    """The batch that was made last."""

    @property
    def waiting(self) -> Collection[Request]:
        """Requests that have arrived and have no row yet, in their order."""

    @property
    def unfinished(self) -> int:
        """The number of sequences that are still to be decoded, arrived or not."""

    def admit(self, count: int) -> list[Sequence]:
        """Make up to ``count`` waiting requests live, as many as there are free rows.

        Returns:
            Those whose prompt has to be read: the next batch. The others are forks of a sequence of the same prompt.
        """

    def length(self, sequence: Sequence) -> int:
        """Return the number of tokens of a live sequence."""

    def batch(self, sequences: list[Sequence], piece: int | None = None, beside: Collection[Sequence] = ()) -> Batch:
        """Return live sequences as a batch.

        They either all decode or all need their prompt read: no more than ``piece`` tokens of each row, or everything with
        None. What is left to read comes back together. ``beside`` rows that decode a piece is read, but never the last token.
        """
