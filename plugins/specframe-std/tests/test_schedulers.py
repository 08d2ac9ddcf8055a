from __future__ import annotations

import pytest
from specframe_testing.conformance import SchedulerSuite
from specframe_testing.conformance.scheduler import simulate

from specframe.plugins.registry import registry

pytestmark = pytest.mark.sampled(3, suites=True)


class TestFixed(SchedulerSuite):
    """Batches that start and end together."""

    @pytest.mark.slow
    def test_as_on_a_gpu(self) -> None:
        """It chooses rows on the host alone, as others do of which this is a fast test."""
        super().test_as_on_a_gpu()

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


class TestMixed(SchedulerSuite):
    """Prompts are read beside rows that decode."""

    reads_beside = True

    def make(self) -> str:
        return "continuous,piece=3,mixed=on"

    def max_wait(self, batch_size: int) -> int:
        """Everyone waits while newcomers' last tokens are read, and never twice in a row."""
        return 1


class TestSameLength(SchedulerSuite):
    """Groups of equal length from a window."""

    @pytest.mark.slow
    def test_as_on_a_gpu(self) -> None:
        """It chooses rows on the host alone, as others do of which this is a fast test."""
        super().test_as_on_a_gpu()

    def make(self) -> str:
        return "same-length,window=12,patience=5"

    def max_wait(self, batch_size: int) -> int:
        """Patience, and the rounds it takes to serve a whole window."""
        return 5 + -(-12 // batch_size)


def test_one_row_is_no_group() -> None:
    """In a batch of two, two sequences of different lengths go together: decoding each alone would take twice the rounds."""
    seen = simulate(
        registry().make("scheduler", "same-length"), [3, 5, 9, 14], [20] * 4, 2, lambda index, length: index % 2
    )
    assert all(len(round.indices) == 2 for round in seen if not round.prefill and round.live > 1)
