"""The moments of every request of a run: when it arrived, was sent, was scheduled, and got each of its chunks."""

from __future__ import annotations

import math
from typing import Any

import attrs

from specframe.contracts.engine import Clock
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer

Key = tuple[int, int]


@attrs.define
class Served:
    """The moments of one request, in seconds on the run's clock."""

    arrival: float
    """When the request came to the client."""
    sent: float
    """When the client sent it: its arrival, or later where the client waits for others to end."""
    prompt_tokens: int
    scheduled_at: float = math.nan
    """When the round began that read the last of its prompt."""
    chunks: list[float] = attrs.Factory(list)
    """When each chunk came: the tokens of one round are one chunk."""
    tokens: list[int] = attrs.Factory(list)
    """Tokens of each chunk."""


class Moments(Observer):
    """An observer that keeps the moments of a run's requests, in ``served`` by index and sample."""

    def __init__(self, clock: Clock) -> None:
        self.served: dict[Key, Served] = {}
        self.clock, self._chosen, self._open = clock, 0.0, 0

    def sent(self, request: Request) -> None:
        """Note that a request is sent now or, if that is later, at its arrival."""
        moment = max(request.arrival, self.clock.now)
        self.served[request.key] = Served(request.arrival, moment, len(request.prompt_ids))

    def enter(self, stage: str) -> None:
        """Count the stages that are open."""
        self._open += 1

    def leave(self, stage: str) -> None:
        """Note when the sequences of a round have been chosen: in its first stage, in which idle time is jumped over."""
        self._open -= 1
        if stage == "schedule" and not self._open:
            self._chosen = self.clock.now

    def round(self, report: RoundReport) -> None:
        """Note the chunks of one round."""
        now = self.clock.now
        for sequence, gained in zip(report.sequences, report.gained.tolist(), strict=True):
            served = self.served[sequence.request.key]
            if not served.chunks:
                served.scheduled_at = self._chosen
            if gained:
                served.chunks.append(now)
                served.tokens.append(gained)

    def lines(self) -> list[dict[str, Any]]:
        """Return what was kept, by index and sample, as JSON takes it."""
        return [attrs.asdict(self.served[key]) for key in sorted(self.served)]
