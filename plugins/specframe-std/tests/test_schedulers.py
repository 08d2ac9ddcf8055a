from __future__ import annotations

from specframe.testing.conformance import SchedulerSuite


class TestFixed(SchedulerSuite):
    """Batches that start and end together."""

    def make(self) -> str:
        return "fixed"

    def max_wait(self, batch_size: int) -> int:
        """Everyone who is live is in every batch."""
        return 0


class TestContinuous(SchedulerSuite):
    """A finished row is replaced at once."""

    def make(self) -> str:
        return "continuous"

    def max_wait(self, batch_size: int) -> int:
        """Everyone waits while newcomers' prompts are read, and never twice in a row."""
        return 1


class TestSameLength(SchedulerSuite):
    """Groups of equal length from a window."""

    def make(self) -> str:
        return "same-length,window=12,patience=5"

    def max_wait(self, batch_size: int) -> int:
        """Patience, and the rounds it takes to serve a whole window."""
        return 5 + -(-12 // batch_size)
