"""The tokens that models compute, and how many of them are filler."""

from __future__ import annotations

from collections import Counter

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer


class Filler(Observer):
    """Counts the tokens that each model computes, and those of them that are real."""

    def __init__(self) -> None:
        self.real: Counter[str] = Counter()
        self.computed: Counter[str] = Counter()

    def fed(self, model: str, real: int, computed: int) -> None:
        """Count the tokens of forwards."""
        self.real[model] += real
        self.computed[model] += computed

    def round(self, report: RoundReport) -> None:
        """Count as filler the draft tokens that were fed as real ones and are not counted as drafted.

        The host knows of them late: where a drafter counts on the device, and where tokens lie beyond a row's limit.
        """
        if report.transfer is None or not report.draft.nodes:
            return
        counts = report.draft.counts
        fed = len(report.drafted) * report.draft.nodes if counts is None else int(counts.sum())
        self.real["target"] -= fed - int(report.drafted.sum())

    @property
    def share(self) -> float:
        """Share of filler among the tokens that all models have computed; 0 where they have computed none."""
        computed = self.computed.total()
        return 1 - self.real.total() / computed if computed else 0.0
