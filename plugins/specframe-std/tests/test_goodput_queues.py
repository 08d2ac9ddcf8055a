"""``goodput`` over queues of prompts, whose rows end together where nothing is drafted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from policy_queues import Queue
from specframe_std.policies.goodput import Goodput
from specframe_std.policies.parting import CHANCE, FILLS, TEXT, UNLIKE, later_end, passes_lost, refills

from specframe.contracts.round import Batch


class Heedless(Goodput):
    """`goodput` that does not count what rows lose that end together."""

    def _beside(self, batch: Batch) -> float:
        return 0.0


def decoded(
    rows: int, prompts: int, new: int, policy: type[Goodput] = Goodput, seeds: int = 8, **of_rows: float
) -> tuple[np.ndarray, int]:
    """Return the ratios of four runs to the best fixed length, means over the queues, (4,), and the rounds with a draft."""
    queues = [Queue(rows, prompts, new, seed, **of_rows) for seed in range(seeds)]
    return np.mean([queue.ratios(4, policy()) for queue in queues], axis=0), sum(queue.drafted for queue in queues)


def speed(rows: int, prompts: int, new: int, **of_rows: Any) -> np.ndarray:
    """Return the ratios of four runs to the best fixed length, means over eight queues or ``seeds``, (4,)."""
    return decoded(rows, prompts, new, **of_rows)[0]


def test_rows_that_end_together_are_kept_together() -> None:
    """At 16 rows a draft of one token gains 8 percent in a round, and loses 4 over a queue, since rows end apart."""
    first, *later = speed(16, 32, 32, seeds=3)
    assert first >= 0.955
    assert np.mean(later) >= 0.97
    ratios, drafted = decoded(16, 32, 32, seeds=3, likely=1.06)
    assert np.mean(ratios[1:]) >= 0.97
    assert drafted < 0.8 * decoded(16, 32, 32, Heedless, seeds=3, likely=1.06)[1]
    assert np.mean(speed(32, 64, 24, seeds=3, likely=1.06)[1:]) >= 0.98


def test_rows_that_end_one_after_the_other_are_filled_so() -> None:
    """Prompts take a forward for each time at which rows may end, but those at which they end anyway, no more than prompts wait. In
    the meantime rows are empty, more of them the more there are."""
    for left, waiting, forwards in (
        ([9] * 4, 8, 3),
        ([9] * 2 + [5] * 2, 8, 2),
        ([2] * 4, 8, 1),
        ([9] * 4, 3, 2),
        ([9] * 4, 0, 0),
        ([*range(2, 10)], 8, 0),
    ):
        assert refills(left, waiting) == forwards, (left, waiting)
    assert refills([40] * 8, 8) == pytest.approx(FILLS - 1 + 0.7 * 40 / 15), "a sixteenth of eight rows is empty"
    assert refills([40] * 32, 32) - (FILLS - 1) > 1.8 * (refills([40] * 8, 8) - (FILLS - 1))


@pytest.mark.wide
@pytest.mark.parametrize("rows", [2, 8, 32])
def test_the_last_row_ends_late(rows: int) -> None:
    """The last of rows that take normally distributed numbers of rounds ends later than the mean by so much, within a fifth."""
    draw, tokens = np.random.default_rng(rows), 40
    for spread, waiting in ((0.0, 0), (4.0, 0), (0.0, 2 * rows)):
        deviation = np.sqrt((1 + waiting / rows) * ((UNLIKE * tokens) ** 2 + CHANCE * tokens))
        anyway_NB, drafted_NB = draw.normal(0, 1, (2, 4000, rows)) * np.array([spread, deviation])[:, None, None]
        both_NB = anyway_NB + drafted_NB
        later = float((both_NB.max(1) - both_NB.mean(1)).mean() - (anyway_NB.max(1) - anyway_NB.mean(1)).mean())
        left = (tokens + spread * np.resize([-1, 1], rows)).astype(int).tolist()
        assert later_end(left, waiting, tokens) == pytest.approx(later, rel=0.2)


def test_rows_that_end_apart_lose_little_for_each_token_of_a_long_run() -> None:
    """A run has one end, however many sequences it has. A row alone loses nothing, nor rows that hardly reach their limit."""
    assert passes_lost([40], 5, 40) == 0
    lost = [later_end([40] * 8, waiting, 40) / (320 + 40 * waiting) for waiting in (0, 8, 80)]
    assert lost[0] > 1.3 * lost[1] > 2.6 * lost[2] > 0
    assert passes_lost([40] * 8, 0, 40) == pytest.approx(lost[0] * np.exp(-40 / TEXT))
    assert passes_lost([40] * 8, 80, 40) == pytest.approx((lost[2] + refills([40] * 8, 80) / 320) * np.exp(-40 / TEXT))
    assert passes_lost([10**6] * 8, 0, 10**6) < 1e-6
