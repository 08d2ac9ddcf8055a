"""The draft length that gives most tokens per second, by measured time and acceptance (goodput: SmartSpec, Liu et al. 2024)."""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
import numpy as np

from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.round import Batch
from specframe.value_checks import whole
from specframe_std.policies.estimates import Acceptance, RoundSeconds

PLAIN_FIRST = 3
"""Rounds of plain decoding at the start of a pipeline: drafts are compared with them. The first is not timed."""
FIRST = 4
"""The first draft length that is tried: a longer draft says more about its cost and about acceptance than a short one."""
EVIDENCE = 4
"""Rows that the first draft length is tried on beyond :data:`TRIAL` rounds: the acceptance of two or three rows says little."""
LONGEST = 64
"""The greatest maximum: the estimate inverts a matrix of so many rows and columns, which takes a third of a millisecond."""
DWELL = 8
"""Rounds for which a batch size keeps its draft length, at most."""
EAGER = 8
"""A draft length is kept for one round more after every so many rounds, up to :data:`DWELL`: early estimates change fast."""
TRIAL = 2
"""Rounds for which a new draft length is kept at first; the one after a plain round is not timed."""
MARGIN = 0.02
"""The share by which another draft length has to be better before it replaces the present one: a change costs time."""
DRAFTING = 0.065
"""The share by which drafting for many rows has to be better than plain decoding. Rows that draft end at different times, so
that the last rounds of a run have few rows. No round's time shows this loss. A single row does not have it."""
OPTIMISM, SETTLED = 0.15, 40
"""Standard deviations by which a draft length is assumed to be faster than estimated, so that uncertain lengths are tried. It
grows by :data:`OPTIMISM` after every :data:`SETTLED` rounds of one draft length: a length rejected by mistake is tried again."""


@attrs.define
class Choice:
    """The draft length of one batch size, and the rounds until it is chosen again."""

    length: int
    left: int
    settled: int = 0
    """Rounds for which it is in use."""


class Goodput:
    """Drafts as many tokens as give most tokens per second, by what rounds took and gained; none where plain decoding is faster.

    The seconds of a round and the tokens it gains are estimated for every draft length from all rounds that were seen
    (:mod:`specframe_std.policies.estimates`), so few lengths have to be tried. An uncertain length is taken to be a little faster
    than estimated (the principle of upper confidence bounds: Lai and Robbins 1985). A length that is not used becomes uncertain
    again. The estimates stay for the pipeline's next run.

    Options:
        maximum: the longest draft, from 1 to 64.
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()

    def __init__(self, maximum: int = 8) -> None:
        self.maximum = Budget(whole("maximum", maximum, 1, LONGEST))
        self.clock: Callable[[], float] = time.perf_counter
        """Tells the time, in seconds."""
        self._seconds, self._acceptance = RoundSeconds(maximum), Acceptance(maximum)
        self._choices: dict[int, Choice] = {}
        self._round = self._drafted = 0
        self._started = 0.0

    def budget(self, batch: Batch) -> Budget:
        """Return the draft length with the most expected tokens per second for the batch's number of rows."""
        rows = len(batch)
        choice = self._choices.get(rows)
        if choice is None or choice.left < 1:
            choice = self._choices[rows] = self._choose(rows)
        choice.left -= 1
        choice.settled += 1
        self._started = self.clock()
        return Budget(choice.length)

    def observe(self, report: RoundReport) -> None:
        """Learn from a round. One that drafts after one that did not is not timed: the drafter had to catch up."""
        seconds = self.clock() - self._started
        rows, drafted = len(report.sequences), report.depth
        self._acceptance.add(report)
        typical = bool(self._drafted or not drafted)
        if typical and drafted and self._seconds.surprises(rows, drafted, seconds):
            self._choices[rows].left += 1
        self._seconds.add(rows, drafted, seconds, typical)
        self._drafted = drafted
        self._round += 1

    def _choose(self, rows: int) -> Choice:
        """Return the best draft length for so many rows, or the one in use where another is not better by :data:`MARGIN`."""
        if self._round < PLAIN_FIRST:
            return Choice(0, 1)
        if not self._seconds.longest:
            return Choice(min(FIRST, self.maximum.depth), TRIAL + min(3, EVIDENCE // rows))
        seconds, deviation = self._seconds.estimate(rows)
        settled = self._choices[rows].settled if rows in self._choices else 0
        hope = OPTIMISM * (1 + settled / SETTLED)
        promise = self._acceptance.gains(hope) / np.maximum(seconds - hope * deviation, 0.3 * seconds)
        promise[0] *= 1 + DRAFTING * (1 - 1 / rows)
        within = np.arange(len(promise)) <= max(3, 2 * self._seconds.longest)
        best, present = int(np.where(within, promise, 0).argmax()), self._present(rows)
        if promise[best] < (1 + MARGIN) * promise[present]:
            return Choice(present, min(DWELL, 1 + self._round // EAGER), settled)
        return Choice(best, TRIAL)

    def _present(self, rows: int) -> int:
        """Return the draft length in use for so many rows, or for the nearest number of rows."""
        return self._choices[min(self._choices, key=lambda size: abs(np.log(size / rows)))].length
