"""Drafts that end where the drafter is no longer sure (SQ-SD: the implicit estimate of quality)."""

from __future__ import annotations

import numpy as np

from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.round import Batch
from specframe.model.run import Run
from specframe.value_checks import number, whole
from specframe_std.policies.acceptance_rates import LONGEST
from specframe_std.policies.confidence import Calibration, ConfidenceStop


class Implicit:
    """Ends each row's draft where the drafter's confidence says that the next token is unlikely to be accepted, with all before it.

    The confidence is a logistic curve of the likeliest token's probability and the entropy, for each place of a draft, fitted to
    what was accepted. It is that of the distribution, not of the token drawn from it, so that the output stays the target's. A row
    that is unsure of the first token drafts nothing.

    Options:
        maximum: the longest draft, from 1 to 64.
        least: the least probability that a token is accepted, with all before it, for it to be drafted.
    """

    needs = frozenset({"stops"})
    offers = frozenset({"calibration"})

    def __init__(self, maximum: int = 8, least: float = 0.4) -> None:
        self.maximum = Budget(whole("maximum", maximum, 1, LONGEST))
        self._least = number("least", least, 0, 1, above=True)
        self.calibration = Calibration(maximum)
        self._stop: ConfidenceStop | None = None

    def calibrated(self) -> np.ndarray:
        """Return by bins what the calibration predicted, and what was accepted."""
        return self.calibration.bins

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def budget(self, batch: Batch) -> Budget:
        """Return the longest draft, with the rule that ends it."""
        rows = {sequence.request.key: row for row, sequence in enumerate(batch.sequences)}
        self._stop = ConfidenceStop(self.calibration.weights_KF, self._least, rows)
        return Budget(self.maximum.depth, stopping=self._stop)

    def observe(self, report: RoundReport) -> None:
        """Compare the confidence with what was accepted."""
        if self._stop is not None:
            self.calibration.add(self._stop.evidence(report))
            self._stop = None
