"""How much the machine's pace changes, by the seconds of rounds."""

from __future__ import annotations

import numpy as np
import pytest
from specframe_std.policies.levels import Levels
from specframe_std.policies.pace import APART, WINDOW, Pace
from specframe_std.policies.round_seconds import NOISE, RECENT, Measured, Prior, RoundSeconds

from specframe.contracts.drafts import Budget


def told(seconds: np.ndarray) -> float:
    """Return the variance of the pace by rounds of one kind."""
    pace = Pace()
    for number in range(APART, len(seconds)):
        pace.add(*(seconds[number] / seconds[[max(number + 1 - RECENT, 0), number - 1]]))
    return pace.variance


def wandering(deviation: float, seed: int, rounds: int = 1500) -> np.ndarray:
    """Return the logarithm of a pace that wanders, with a correlation of 0.37 after ten rounds."""
    noise, pace = np.random.default_rng(seed), np.zeros(rounds)
    keep = np.exp(-0.1)
    for number in range(1, rounds):
        pace[number] = keep * pace[number - 1] + noise.normal(0, deviation * (1 - keep**2) ** 0.5)
    return pace


@pytest.mark.wide
def test_noise_is_no_pace() -> None:
    """Rounds that differ by chance alone show a steady machine, however much they differ."""
    for deviation in (0.02, 0.1):
        variances = [told(np.exp(np.random.default_rng(seed).normal(0, deviation, 1500))) for seed in range(8)]
        assert np.mean(variances) < 0.1 * deviation**2


@pytest.mark.wide(but=["0.1"])
@pytest.mark.parametrize("deviation", [0.1, 0.2])
def test_a_pace_that_changes(deviation: float) -> None:
    """The variance of a pace that wanders is found beside noise, but for the part by which rounds that follow each other differ."""
    variances = [
        told(np.exp(wandering(deviation, seed) + np.random.default_rng(99 + seed).normal(0, 0.05, 1500)))
        for seed in range(8)
    ]
    assert np.mean(variances) == pytest.approx(0.75 * deviation**2, rel=0.15)


def test_one_round_tells_little() -> None:
    """A round held up for long counts as one of twice the seconds, so that it does not hide the pace before it."""
    seconds = np.exp(wandering(0.2, 3))
    usual = told(seconds)
    seconds[-10] *= 1000
    assert told(seconds) == pytest.approx(usual, rel=0.1)


def test_no_median_is_surer_than_the_pace() -> None:
    """On a machine whose pace changes a draft length that was measured often is as uncertain as the pace, and follows the line of
    the others; on a steady one it stands by its own seconds."""
    depth = np.array([3])
    for deviation in (0.0, 0.2):
        seconds, pace = RoundSeconds(Levels(Budget(6))), wandering(deviation, 5, 600)
        for number, factor in enumerate(np.exp(pace).tolist()):
            kind = (0, 2, 4, 6)[number % 4]
            seconds.add(4, kind, 4 * (kind + 1), (1 + 0.1 * kind) * factor)
            if number % 8 == 0:
                seconds.curve(4)
        for _ in range(RECENT + 1):
            seconds.add(4, 3, 16, 1.3 * 1.4)
        curve = seconds.curve(4)
        found, off = float(curve.seconds(depth, depth)[0]), float(curve.deviations(depth, depth)[0])
        if deviation:
            assert found < 1.4
            assert off > 0.1
        else:
            assert found > 1.3 * 1.3
            assert off < 2 * NOISE / RECENT**0.5 * found


def test_more_tokens_are_no_pace() -> None:
    """Rounds of one draft length whose rows draft fewer and fewer tokens show a steady machine, where shapes tell the cost
    of a token."""
    for each, steady in ((0.1, True), (0.0, False)):
        seconds = RoundSeconds(Levels(Budget(6)))
        seconds.prior = Prior(0.0, each)
        for number in range(200):
            tokens = 24 - number % 25 // 2
            seconds.add(8, 2, tokens, 1 + 0.1 * tokens)
            if number % 8 == 0:
                seconds.curve(8)
        assert (seconds._pace.variance < 1e-4) == steady


def test_each_round_tells_of_the_pace_once() -> None:
    """Whether the seconds of rounds are asked for after each round or seldom, as many rounds show the pace."""
    for often in (1, 8, 14):
        seconds = RoundSeconds(Levels(Budget(6)))
        for number in range(1, 202):
            seconds.add(2, 3, 8, 1.0)
            if number % often == 1 % often:
                seconds.curve(2)
        seconds.curve(2)
        seen = seconds._pace._seen
        assert seen == pytest.approx(sum((1 - 1 / WINDOW) ** age for age in range(200 - APART)), abs=15)
        seconds.curve(2)
        assert seconds._pace._seen == seen


def test_rounds_that_are_near_each_other_tell_nothing() -> None:
    """Of the first rounds those show the pace that have another so far before them."""
    seconds = RoundSeconds(Levels(Budget(6)))
    for _ in range(1 + APART + 4):  # the first is left out
        seconds.add(2, 3, 8, 1.0)
    seconds.curve(2)
    assert seconds._pace._seen == pytest.approx(4, rel=0.01)


def test_the_lesser_of_two_in_the_middle_is_usual() -> None:
    """Of an even number of rounds the lesser of the two in the middle is taken: what holds a round up only adds seconds."""
    seconds = Measured(0)
    for number, one in enumerate((1.0, 5.0, 2.0, 9.0)):
        seconds.add(one, 3.0, number)
    assert seconds.usual(0.0) == (2.0, 3.0)


def test_other_batch_sizes_tell_nothing_of_a_depth_by_itself() -> None:
    """A depth that departs from the straight line does so at its own batch size alone."""
    seconds = RoundSeconds(Levels(Budget(6)))
    for _ in range(RECENT):
        for depth in range(5):
            seconds.add(8, depth, 8 * (depth + 1), 1 + 0.1 * depth + (depth == 3))
    assert seconds.curve(8).mean_F[4 + 3] > 0.05
    assert seconds.curve(2).mean_F[4 + 3] == pytest.approx(0, abs=1e-9)
