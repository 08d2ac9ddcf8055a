"""Observers for comparisons only. The clock is stopped while they count."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe_lab.comparison.oracle import READING


class Positions(Observer):
    """Counts drafted and accepted tokens for every place in the draft, and the drafts whose tokens before it were all accepted."""

    drafted = accepted = reached = np.zeros(0, dtype=np.int64)

    def round(self, report: RoundReport) -> None:
        """Count one round; the first round of a run resets the counts. Draft tokens beyond a row's limit are not counted."""
        if report.number == 1:
            self.drafted = self.accepted = self.reached = np.zeros(0, dtype=np.int64)
        count = report.depth
        if count > len(self.drafted):
            counts = (self.drafted, self.accepted, self.reached)
            self.drafted, self.accepted, self.reached = (np.pad(n, (0, count - len(n))) for n in counts)
        limits, places = np.array([sequence.limit for sequence in report.sequences]), np.arange(count)
        room = limits - report.lengths - 1  # one is the bonus token
        self.drafted[:count] += (room[:, None] > places).sum(0)
        self.accepted[:count] += (report.accepted[:, None] > places).sum(0)
        self.reached[:count] += ((room[:, None] > places) & (report.accepted[:, None] >= places)).sum(0)


class Branches(Observer):
    """Counts, for every depth and branch of trees, the rows whose accepted path reached it, and those where it was accepted.

    Branch r of a depth is the r-th child, from 0, of the accepted node above. A path reaches it where that node has such a child,
    within the row's limit.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], list[int]] = {}

    def round(self, report: RoundReport) -> None:
        """Count one round of this process; the first round of a run resets the counts. Chains have no branches."""
        if report.number == 1:
            self.counts = {}
        if report.transfer is None:
            return
        draft, path_BT = report.draft, report.acceptance.path_BT
        if draft.parents_BN is None or path_BT is None:
            return
        parents, paths = draft.above_BN.cpu().numpy(), path_BT.cpu().numpy()
        meant = report.transfer.host.counts
        for row, sequence in enumerate(report.sequences):
            own = parents[row] if meant is None else parents[row][: meant[row]]
            room = min(draft.depth, sequence.limit - int(report.lengths[row]) - 1)  # one is the bonus token
            stood = [int(node) for node in paths[row][: min(int(report.accepted[row]), room)]]
            self._count(own, stood, room)

    def _count(self, parents: np.ndarray, stood: list[int], room: int) -> None:
        above = [-1, *stood][:room]
        for depth, (parent, node) in enumerate(zip(above, [*stood, None], strict=False), start=1):
            for rank, child in enumerate(np.flatnonzero(parents == parent).tolist()):
                count = self.counts.setdefault((depth, rank), [0, 0])
                count[0] += 1
                count[1] += child == node

    def lines(self) -> list[list[int]]:
        """Return depth, branch from 1, rows that reached it and rows where it was accepted."""
        return [[depth, rank + 1, *count] for (depth, rank), count in sorted(self.counts.items())]


class Rounds(Observer):
    """Records the rounds of every continuation, see :data:`specframe_lab.comparison.oracle.Round`."""

    def __init__(self) -> None:
        self._rounds: dict[int, list[list[int]]] = {}

    def round(self, report: RoundReport) -> None:
        """Note one round; the first of a run starts anew."""
        if report.number == 1:
            self._rounds = defaultdict(list)
        for row, sequence in enumerate(report.sequences):
            if report.gained[row]:
                start = int(report.lengths[row]) - len(sequence.request.prompt_ids)
                drafted, accepted = report.drafted[row], report.accepted[row]
                counts = (READING, report.gained[row]) if report.prefill else (drafted, accepted)
                self._rounds[sequence.request.index].append([start, *map(int, counts)])

    def lines(self, count: int) -> list[list[list[int]]]:
        """Return the rounds of each of the first ``count`` continuations."""
        return [self._rounds.get(index, []) for index in range(count)]


class Waits(Observer):
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
