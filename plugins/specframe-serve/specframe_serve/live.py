"""The state that the page shows: rows with their latest drafts, acceptance and speed of the last seconds, and acceptance before."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.text.stopping import text_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WINDOW = 10.0
"""Seconds over which acceptance and speed are averaged: long enough to be read, short enough to follow a change."""

LOOKED_AT = 3.0
"""Seconds after which nobody looks at the page any more. It asks every half second."""

ROWS = 64
"""Rows shown: more do not fit on a page."""

SPAN, SPANS = 5.0, 60
"""Seconds of a point of the history, and points of it: five minutes, one point for some tens of rounds."""

Row = dict[str, Any]
SHOWN = ("request", "length", "accepted", "rejected", "drafted", "stood", "resting")
"""What the page receives of a row."""


class Live(Observer):
    """Keeps what the page shows. Drafts are copied from the device only while somebody looks: the copy is a wait.

    Args:
        tokenizer: the target's, for the texts of drafts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._tokenizer = tokenizer
        self._rounds: deque[tuple[float, int, int, int, int]] = deque()
        self._history: deque[list[int]] = deque(maxlen=SPANS)
        self._places: list[Row | None] = []
        self._asked = float("-inf")

    def round(self, report: RoundReport) -> None:
        """Note a round."""
        now = time.monotonic()
        counts = (int(report.gained.sum()), int(report.drafted.sum()), int(report.accepted.sum()))
        self._rounds.append((now, *counts, int((report.drafted > 0).sum())))
        while self._rounds[0][0] < now - WINDOW:
            self._rounds.popleft()
        self._note(int(now // SPAN), *counts[1:])
        ended = {sequence.request.key for sequence in report.finished}
        if now - self._asked < LOOKED_AT and not report.prefill and report.transfer is not None:
            self._seat({row["key"]: row for row in self._drafts(report) if row["key"] not in ended}, now)
        self._places = [None if row and row["key"] in ended else row for row in self._places]

    def _note(self, span: int, drafted: int, accepted: int) -> None:
        """Add a round's draft tokens to the history."""
        if not self._history or self._history[-1][0] != span:
            self._history.append([span, 0, 0])
        self._history[-1][1] += drafted
        self._history[-1][2] += accepted

    def _seat(self, rows: dict[Any, Row], now: float) -> None:
        """Put the rows of a round where their sequences were before, and those that are new where there is room.

        A sequence that the round has left out keeps its place until it ends, or has not been seen for as long as is averaged.
        """
        places: list[Row | None] = []
        for before in self._places:
            left = before | {"resting": True} if before and before["seen"] >= now - WINDOW else None
            places.append(rows.pop(before["key"], left) if before else None)
        for row in rows.values():
            if None in places:
                places[places.index(None)] = row
            elif len(places) < ROWS:
                places.append(row)
        self._places = places

    def _drafts(self, report: RoundReport) -> list[Row]:
        """Return the rows of a round: each with the texts of its draft's accepted and rejected tokens."""
        now = time.monotonic()
        drafted = report.draft.tokens_BN[:ROWS].tolist()
        paths = None if report.acceptance.path_BT is None else report.acceptance.path_BT[:ROWS].tolist()
        rows = []
        for row, (tokens, sequence) in enumerate(zip(drafted, report.sequences, strict=False)):
            count, stood = int(report.drafted[row]), int(report.accepted[row])
            path = paths[row][:stood] if paths else [*range(stood)]
            others = [place for place in range(count) if place not in path]
            rows.append(
                {
                    "key": sequence.request.key,
                    "seen": now,
                    "resting": False,
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
        """Return the state as JSON can hold it.

        ``rows`` has an entry for each place on the page, None where it is free. ``history`` has the draft acceptance rate of each
        span of ``span`` seconds up to now, the earliest first, None where nothing was drafted.
        """
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
            "rows": [row and {name: row[name] for name in SHOWN} for row in self._places] if recent and running else [],
            "span": SPAN,
            "history": self._rates(int(now // SPAN)),
        }

    def _rates(self, last: int) -> list[float | None]:
        """Return the acceptance rate of each span up to the last one."""
        counts = {span: (drafted, accepted) for span, drafted, accepted in [*self._history]}
        spans = (counts.get(span, (0, 0)) for span in range(last - SPANS + 1, last + 1))
        return [accepted / drafted if drafted else None for drafted, accepted in spans]
