"""The same draft length every round."""

from __future__ import annotations

from specframe.contracts.drafts import Budget, RoundReport
from specframe.contracts.round import Batch
from specframe.values import whole


class FixedLength:
    """Drafts the same number of tokens every round.

    Options:
        length: that number, at least 1; for plain decoding there is the drafter "none".
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()

    def __init__(self, length: int = 5) -> None:
        self.maximum = Budget(whole("length", length, 1))

    def budget(self, batch: Batch) -> Budget:
        """Return the fixed length."""
        return self.maximum

    def observe(self, report: RoundReport) -> None:
        """Nothing to learn."""
