"""Observers for comparisons only. The clock is stopped while they count."""

from __future__ import annotations

import numpy as np

from specframe.contracts.drafts import RoundReport
from specframe.observe.watch import Watcher


class Positions(Watcher):
    """Counts drafted and accepted tokens for every place in the draft."""

    drafted = accepted = np.zeros(0, dtype=np.int64)

    def round(self, report: RoundReport) -> None:
        """Count one round; the first round of a run resets the counts. Draft tokens beyond a row's limit are not counted."""
        if report.number == 1:
            self.drafted = self.accepted = np.zeros(0, dtype=np.int64)
        count = report.draft.depth
        if count > len(self.drafted):
            self.drafted, self.accepted = (np.pad(n, (0, count - len(n))) for n in (self.drafted, self.accepted))
        room = (
            np.array([sequence.limit for sequence in report.sequences]) - report.lengths - 1
        )  # one is the bonus token
        places = np.arange(count)
        self.drafted[:count] += (room[:, None] > places).sum(0)
        self.accepted[:count] += (report.accepted[:, None] > places).sum(0)


class Waits(Watcher):
    """Records the most rounds that a sequence waited between two of its rounds."""

    longest = 0

    def round(self, report: RoundReport) -> None:
        """Note one round; the first of a run starts anew."""
        if report.number == 1:
            self.longest = 0
            self._latest: dict[int, int] = {}
        for sequence in report.sequences:
            index = sequence.request.index
            self.longest = max(self.longest, report.number - self._latest.get(index, report.number) - 1)
            self._latest[index] = report.number
