"""The same draft length every round."""

from __future__ import annotations

from specframe.types import Batch, RoundReport


class FixedLength:
    """Drafts the same number of tokens every round."""

    def __init__(self, length: int = 5) -> None:
        if length < 1:
            raise ValueError(f"draft length must be at least 1, got {length}; for plain decoding use drafter none")
        self.maximum = length

    def draft_length(self, batch: Batch) -> int:
        """Return the fixed length."""
        return self.maximum

    def observe(self, report: RoundReport) -> None:
        """Nothing to learn."""
