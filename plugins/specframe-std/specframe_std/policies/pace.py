"""How much a machine's pace changes, by other programs on its cores or by its clock rate."""

from __future__ import annotations

import math

BELIEF = 30
"""Rounds after which half of what they show is believed: before, the pace is taken to be steady. 10 and 100 are alike in simulated
queues. Were a deviation of 0.1 assumed first, first runs on shared cores would win 0.4 percent, and drafts that jump in cost would
be found late on all machines."""
APART = 8
"""Rounds that are so far apart, or farther, differ by the pace."""
GREATEST = math.log(2)
"""Logarithm of the ratio of two rounds' seconds above which it counts no more: one round that took ten times as long is no pace."""
WINDOW = 400
"""Rounds after which what was seen counts 0.37."""


class Pace:
    """The variance of the machine's pace, as a share, over the time in which the rounds of a median are timed.

    Medians of two draft lengths were measured at different times, and so at different paces. No number of rounds makes a median
    surer than that. Rounds of one kind that follow each other differ by chance alone, rounds far apart by chance and pace: half of
    the difference of the mean squares is the variance of the pace (a variogram: Matheron 1963).
    """

    def __init__(self) -> None:
        self._beyond = self._seen = 0.0

    def add(self, far: float, near: float) -> None:
        """Take a round.

        Args:
            far: its seconds over those of a round of the same kind at least :data:`APART` rounds before.
            near: over those of the one just before.
        """
        beyond = (_size(far) ** 2 - _size(near) ** 2) / 2
        fade = 1 - 1 / WINDOW
        self._beyond, self._seen = self._beyond * fade + beyond, self._seen * fade + 1

    @property
    def variance(self) -> float:
        """The variance of the pace."""
        return max(self._beyond, 0.0) / (self._seen + BELIEF)


def _size(ratio: float) -> float:
    """Return how far a ratio is from 1."""
    return min(abs(math.log(ratio)), GREATEST)
