"""``goodput`` over queues of prompts, whose rows end together where nothing is drafted."""

from __future__ import annotations

import numpy as np
import pytest
from policy_queues import SHAPES, Queue
from policy_worlds import Rows
from specframe_std.policies.goodput import FILLS, Goodput
from specframe_std.policies.pace import Pace
from specframe_std.policies.round_seconds import Prior

from specframe.contracts.round import Batch


class Heedless(Goodput):
    """`goodput` that does not count what rows lose that end together."""

    def _parting(self, batch: Batch) -> float:
        return 0.0


def decoded(
    rows: int, prompts: int, new: int, policy: type[Goodput] = Goodput, **of_rows: float
) -> tuple[np.ndarray, int]:
    """Return the ratios of four runs to the best fixed length, means over eight queues, (4,), and the rounds with a draft."""
    queues = [Queue(rows, prompts, new, seed, **of_rows) for seed in range(8)]
    return np.mean([queue.ratios(4, policy()) for queue in queues], axis=0), sum(queue.drafted for queue in queues)


def speed(rows: int, prompts: int, new: int, **of_rows: float) -> np.ndarray:
    """Return the ratios of four runs to the best fixed length, means over eight queues, (4,)."""
    return decoded(rows, prompts, new, **of_rows)[0]


def test_rows_that_end_together_are_kept_together() -> None:
    """At 16 rows a draft of one token gains 8 percent in a round, and loses 4 over a queue, since rows end apart."""
    first, *later = speed(16, 32, 32)
    assert first >= 0.955
    assert np.mean(later) >= 0.97
    ratios, drafted = decoded(16, 32, 32, likely=1.06)
    assert np.mean(ratios[1:]) >= 0.97
    assert drafted < 0.8 * decoded(16, 32, 32, Heedless, likely=1.06)[1]
    assert np.mean(speed(32, 64, 24, likely=1.06)[1:]) >= 0.98


def test_rows_that_end_apart_draft() -> None:
    """Where prompts have unequal numbers of new tokens nothing is lost, and drafts pay."""
    first, *later = speed(8, 24, 32, unequal=True)
    assert first >= 0.98
    assert np.mean(later) >= 0.985
    assert np.mean(speed(16, 32, 32, unequal=True)) >= 0.98


def test_drafts_that_pay_are_taken_though_rows_part() -> None:
    """At 8 rows a draft of one token gains 19 percent in a round, and 3 over a queue."""
    assert speed(8, 24, 32).mean() >= 0.975


def test_what_parting_costs() -> None:
    """A forward for each time at which rows may end, but those at which they end anyway; nothing for one row."""
    policy = Goodput()
    policy._seconds.prepare(SHAPES)
    batch = Rows(8)
    batch.lengths = np.full(8, 20)
    for left, forwards in (([9] * 8, FILLS - 1), ([9] * 4 + [5] * 4, FILLS - 2), ([2] * 8, 1), (range(2, 10), 0)):
        batch.limits = 20 + np.array(left)
        assert policy._parting(batch) == pytest.approx(forwards / (1 + 8 * SHAPES.each))
    policy._seconds.prepare(Prior())
    batch = Rows(1)
    assert policy._parting(batch) == 0


def test_another_program_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where forwards take longer by 0.8 for a fifth of the time, few draft lengths are mistaken by the pace at which they were
    measured; where nothing else runs nothing is lost."""
    found = np.mean([speed(rows, 24, 32, slower=1.8)[1:] for rows in (1, 2)])
    assert np.mean(speed(1, 24, 32)[1:]) >= 0.985
    monkeypatch.setattr(Pace, "variance", 0.0)
    assert found > np.mean([speed(rows, 24, 32, slower=1.8)[1:] for rows in (1, 2)]) + 0.01
