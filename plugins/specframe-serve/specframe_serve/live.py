"""The state that the page shows: the rows of the latest round with their drafts, acceptance and speed of the last seconds."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from specframe.contracts.reports import RoundReport
from specframe.observe.watch import Watcher
from specframe.text.stopping import text_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WINDOW = 10.0
"""Seconds over which acceptance and speed are averaged: long enough to be read, short enough to follow a change."""

LOOKED_AT = 3.0
"""Seconds after which nobody looks at the page any more. It asks every half second."""

ROWS = 64
"""Rows shown: more do not fit on a page."""


class Live(Watcher):
    """Keeps what the page shows. Drafts are copied from the device only while somebody looks: the copy is a wait.

    Args:
        tokenizer: the target's, for the texts of drafts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._tokenizer = tokenizer
        self._rounds: deque[tuple[float, int, int, int, int]] = deque()
        self._rows: list[dict[str, Any]] = []
        self._asked = float("-inf")

    def round(self, report: RoundReport) -> None:
        """Note a round."""
        now = time.monotonic()
        counts = (int(report.gained.sum()), int(report.drafted.sum()), int(report.accepted.sum()))
        self._rounds.append((now, *counts, int((report.drafted > 0).sum())))
        while self._rounds[0][0] < now - WINDOW:
            self._rounds.popleft()
        if now - self._asked < LOOKED_AT and not report.prefill and report.transfer is not None:
            self._rows = self._drafts(report)

    def _drafts(self, report: RoundReport) -> list[dict[str, Any]]:
        """Return the rows of a round: each with the texts of its draft's accepted and rejected tokens."""
        drafted = report.draft.tokens_BN[:ROWS].tolist()
        paths = None if report.verdict.path_BT is None else report.verdict.path_BT[:ROWS].tolist()
        rows = []
        for row, (tokens, sequence) in enumerate(zip(drafted, report.sequences, strict=False)):
            count, stood = int(report.drafted[row]), int(report.accepted[row])
            path = paths[row][:stood] if paths else [*range(stood)]
            others = [place for place in range(count) if place not in path]
            rows.append(
                {
                    "request": sequence.request.index,
                    "length": int(report.lengths[row] + report.gained[row]),
                    "accepted": text_of(self._tokenizer, [tokens[place] for place in path]),
                    "rejected": text_of(self._tokenizer, [tokens[place] for place in others]),
                    "drafted": count,
                    "stood": stood,
                }
            )
        return rows

    def state(self, running: int, waiting: int) -> dict[str, Any]:
        """Return the state as JSON can hold it."""
        now = self._asked = time.monotonic()
        recent = [one for one in [*self._rounds] if one[0] >= now - WINDOW]
        tokens, drafted, accepted, drafts = (sum(one[part] for one in recent) for part in range(1, 5))
        seconds = max(1e-9, now - recent[0][0]) if recent else 1.0
        return {
            "running": running,
            "waiting": waiting,
            "tokens_per_second": tokens / seconds,
            "mean_acceptance_length": 1 + accepted / drafts if drafts else 0.0,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "rows": self._rows if recent and running else [],
        }
