from __future__ import annotations

import pytest
from specframe_std.schedulers.refill import Refill
from specframe_testing.conformance import SchedulerSuite
from specframe_testing.conformance.scheduler import simulate

from specframe.plugins.registry import registry


@pytest.mark.wide(but=["test_equals_reference[default]"])
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


@pytest.mark.wide(but=["test_equals_reference[default]", "test_a_stream_of_short_requests_does_not_starve_a_long_one"])
class TestContinuous(SchedulerSuite):
    """Finished rows are replaced while the others decode."""

    def make(self) -> str:
        return "continuous"

    def max_wait(self, batch_size: int) -> int:
        """Everyone waits while newcomers' prompts are read, and never twice in a row."""
        return 1


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestMixed(SchedulerSuite):
    """Prompts are read in mixed batches."""

    reads_beside = True

    def make(self) -> str:
        return "continuous,piece=3,mixed=on"

    def max_wait(self, batch_size: int) -> int:
        """Everyone waits while newcomers' last tokens are read, and never twice in a row."""
        return 1


@pytest.mark.wide(but=["test_equals_reference[default]", "test_a_crowd_in_step_does_not_starve_the_rest"])
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


def test_rows_are_not_left_empty_for_long() -> None:
    """After many rows have ended at once and no more do, the last of them stay empty for as long as a forward costs, no longer."""
    refill = Refill(1.0, 16)
    refill.filled(16)
    for _ in range(20):
        refill.look(16)
    refill.look(6)
    assert refill.due(10, 100)
    refill.filled(16)
    refill.look(14)
    assert not refill.due(2, 100), "two rows are few beside those that have ended"
    empty = 2
    refill.look(14)
    while not refill.due(2, 100):
        empty += 2
        refill.look(14)
    assert empty == 16, "as many rows as a full round has"


def test_an_idle_batch_is_filled() -> None:
    """Where all rows end at once the next prompts are read, however many free rows are worth waiting for."""
    seen = simulate(registry().make("scheduler", "continuous,wait=8"), [5] * 12, [2] * 12, 4, lambda *_: 1)
    assert sum(one.prefill for one in seen) == 3


@pytest.mark.wide(but=["3"])
@pytest.mark.parametrize("waiting", [1, 2, 3])
def test_no_row_is_left_empty_where_all_prompts_find_one(waiting: int) -> None:
    """Who waits is given a row at once unless more wait than rows are free."""
    refill = Refill(8.0, 16)
    refill.filled(16)
    refill.look(13)
    assert refill.due(3, waiting)
    refill.look(13)
    assert not refill.due(3, 4)
