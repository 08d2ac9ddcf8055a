"""The draft length that gives most tokens per second, by measured time and acceptance (goodput: SmartSpec, Liu et al. 2024)."""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
import numpy as np

from specframe.types import Batch, RoundReport
from specframe.values import whole
from specframe_std.policies.estimates import Acceptance, RoundSeconds

LONGEST = 256
"""The greatest maximum: what is estimated takes (maximum + 1)² numbers and the time to go through them."""
DWELL = 8
"""Rounds a batch size keeps its draft length before it is thought over; as few as a trial has when it is new."""
MARGIN = 0.01
"""What another draft length has to promise to be better by, before it is changed to."""
TRIAL, PAUSE = 2, 32
"""Rounds another draft length is tried for, and rounds before it is tried again. The first pays for the change."""
SURPRISE = 2.0
"""A trial that takes so many times what was expected goes on for a round: something else may have held it up."""
ALLOWANCE, SHARE, MOST = 2.0, 0.01, 10.0
"""What trials may cost: so many rounds at the start, this share of all time, never more than so many rounds at once."""


@attrs.define
class Trial:
    """A draft length on trial for ``left`` rounds: the seconds expected of one, and what a row's token costs by the best."""

    length: int
    expected: float
    price: float
    left: int = TRIAL
    again: bool = False


@attrs.define
class Choice:
    """The draft length of one batch size, the rounds until it is thought over, and another one on trial."""

    length: int
    left: int
    trial: Trial | None = None


class Goodput:
    """Drafts as many tokens as give most tokens per second, by what rounds took and gained; none where plain decoding is faster.

    The seconds of a round come from the latest rounds of its batch size, the tokens it gains from the acceptance of each place
    of the draft (:mod:`specframe_std.policies.estimates`). A change has to promise 1 percent. What is not in use is tried now
    and then, and paid for: what a trial loses against the best is taken from a purse, which starts with two rounds' time and
    earns one percent of all time, and when it is empty nothing is tried. What is learnt stays for the pipeline's next run.

    Options:
        maximum: the longest draft, from 1 to 256.
    """

    def __init__(self, maximum: int = 8) -> None:
        self.maximum = whole("maximum", maximum, 1, LONGEST)
        self.clock: Callable[[], float] = time.perf_counter
        """Tells the time, in seconds."""
        self._seconds, self._acceptance = RoundSeconds(maximum), Acceptance(maximum)
        self._choices: dict[int, Choice] = {}
        self._tried: dict[tuple[int, int], int] = {}
        self._purse: float | None = None
        self._round = self._drafted = 0
        self._started = 0.0

    def draft_length(self, batch: Batch) -> int:
        """Return the best draft length known for so many rows, or the one on trial."""
        rows = len(batch)
        choice = self._choices.get(rows)
        if choice is None or not (choice.left or choice.trial):
            choice = self._choices[rows] = self._choose(rows)
        self._started = self.clock()
        return choice.trial.length if choice.trial else choice.length

    def observe(self, report: RoundReport) -> None:
        """Learn from a round that decoded. One that drafts after one that did not is not timed: the drafter had to catch up."""
        if report.prefill:
            return
        seconds = self.clock() - self._started
        rows, drafted = len(report.sequences), report.draft.length
        if drafted:
            self._acceptance.add(report)
        self._seconds.add(rows, drafted, seconds, typical=bool(self._drafted or not drafted))
        self._settle(self._choices[rows], drafted, seconds)
        self._drafted = drafted
        self._round += 1

    def _choose(self, rows: int) -> Choice:
        """Return the best draft length that was measured with so many rows, and perhaps another one on trial.

        The first choice of all is plain decoding, which costs least; that of a new batch size is what the model says.
        """
        if not self._choices:
            return Choice(0, TRIAL + 1)
        curve, gains, known = self._seconds.curve(rows), self._acceptance.gains(), self._seconds.known(rows)
        goodput = gains / curve
        best = int(np.where(known, goodput, 0).argmax()) if known.any() else int(goodput.argmax())
        nearest = min(self._choices, key=lambda size: abs(np.log(size / rows)))
        if goodput[best] < (1 + MARGIN) * goodput[self._choices[nearest].length]:
            best = self._choices[nearest].length
        if rows not in self._choices:
            return Choice(best, TRIAL)
        return Choice(best, DWELL, self._trial(rows, best, curve, gains))

    def _trial(self, rows: int, best: int, curve: np.ndarray, gains: np.ndarray) -> Trial | None:
        """Return a trial that the purse allows, of what was not tried for long and promises much.

        What was not measured may take no longer than a shorter draft: that is hoped for, and half believed. Plain decoding
        comes before all else that was not measured, and nothing is tried that is more than twice as long as all that was.
        """
        if self._purse is None:
            self._purse = ALLOWANCE * float(curve[best])
        price, known = float(curve[best] / gains[best]), self._seconds.known(rows)
        shorter = np.maximum.accumulate(np.where(known, curve, 0) * (np.arange(len(curve)) > 0))
        hoped = np.where(known | (shorter == 0), curve, shorter)
        affordable = TRIAL * ((curve + hoped) / 2 - gains * price) <= self._purse
        ages = np.array([self._round - self._tried.get((rows, length), -8 * PAUSE) for length in range(len(curve))])
        ages[best] = 0
        within = np.arange(len(curve)) <= max(2, 2 * self._seconds.longest)
        promise = np.where(affordable & within, ages * (gains * price / hoped) ** 4, 0)
        other = int(promise.argmax()) if known[0] else 0
        if ages[other] < PAUSE or not affordable[other]:
            return None
        self._tried[rows, other] = self._round
        return Trial(other, float(curve[other]), price)

    def _settle(self, choice: Choice, drafted: int, seconds: float) -> None:
        """Save for the next trial, or pay for a round of the present one."""
        trial = choice.trial
        if trial is None:
            choice.left -= 1
            if self._purse is not None:
                self._purse = min(self._purse + SHARE * seconds, MOST * seconds)
            return
        assert self._purse is not None, "a trial was paid for"
        gained = float(self._acceptance.gains()[min(drafted, self.maximum)])
        self._purse -= max(0.0, min(seconds, SURPRISE * trial.expected) - gained * trial.price)
        trial.left -= 1
        if trial.left == 0 and seconds > SURPRISE * trial.expected and not trial.again:
            trial.again, trial.left = True, 1
        if trial.left == 0:
            choice.trial, choice.left = None, 0
