"""The waits and copies of each round."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import attrs

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe_testing.device.counters import COPY, COUNTERS, WAIT, CounterEvent, count


@attrs.frozen
class Traffic:
    """What happened from the end of one round to the end of the next."""

    report: RoundReport
    events: Counter[CounterEvent]
    steady: bool
    """Whether it decoded the rows of the round before, none of which had ended."""

    @property
    def waits(self) -> int:
        """Number of device synchronisations."""
        return count(self.events, WAIT)

    @property
    def copies(self) -> int:
        """Copies from the host to the device."""
        return count(self.events, COPY)

    def __str__(self) -> str:
        found = [f"{number} x {event}" for event, number in sorted(self.events.items()) if event.kind in (WAIT, COPY)]
        return "\n".join([f"round {self.report.number}: {self.waits} waits, {self.copies} copies", *found])


class Rounds(Observer):
    """An observer that keeps the traffic of every round."""

    def __init__(self, events: Counter[CounterEvent]) -> None:
        self._events = events
        self.rounds: list[Traffic] = []

    def round(self, report: RoundReport) -> None:
        """Keep a round's events."""
        before = self.rounds[-1].report if self.rounds else None
        steady = before is not None and not (report.prefill or before.prefill or before.finished)
        steady = steady and before is not None and before.sequences == report.sequences
        self.rounds.append(Traffic(report, Counter(self._events), steady))
        self._events.clear()

    @property
    def steady(self) -> list[Traffic]:
        """The rounds that decoded the rows of the round before."""
        return [one for one in self.rounds if one.steady]


@contextlib.contextmanager
def watched_rounds() -> Iterator[Rounds]:
    """Hand out an observer for a pipeline that decodes inside the block."""
    with COUNTERS.watched(WAIT, COPY) as events:
        yield Rounds(events)
