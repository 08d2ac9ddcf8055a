"""Waits, copies and allocations of the simulated device, and the lines of code they happen in."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import torch

from specframe.devices import kinds

PASSED = tuple(str(Path(module).parent) for module in (__file__, kinds.__file__, torch.__file__))
"""The folders of code that does what other code asks of it."""

WAIT, COPY, ALLOCATION, LAUNCH = "wait", "copy", "allocation", "launch"


@attrs.frozen(order=True)
class CounterEvent:
    """One thing that happened."""

    kind: str
    """"wait": the host synchronises for the device. "copy": from the host to the device. "allocation": of device memory.
    "launch": an operator or a graph is queued; those of graphs are not counted."""
    what: str
    """The operation, as text."""
    place: str
    """The file and line of the code that asked for it: the innermost one outside of torch and ``specframe.devices``."""

    def __str__(self) -> str:
        return f"{self.kind} ({self.what}) at {self.place}"


class EventLog:
    """Counts since the program began, and the events inside :meth:`watched` blocks."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._watching: list[tuple[tuple[str, ...], Counter[CounterEvent]]] = []
        self._refused: list[tuple[frozenset[str], str]] = []

    def note(self, kind: str, what: str) -> None:
        """Count an event.

        Raises:
            RuntimeError: it is refused where it happens.
        """
        self.totals[kind] += 1
        for refused, where in self._refused:
            if kind in refused:
                raise RuntimeError(f"{CounterEvent(kind, what, place())}: not permitted {where}")
        if watching := [counts for kinds, counts in self._watching if kind in kinds]:
            event = CounterEvent(kind, what, place())
            for counts in watching:
                counts[event] += 1

    @contextlib.contextmanager
    def watched(self, *kinds: str) -> Iterator[Counter[CounterEvent]]:
        """Hand out a counter of the events inside the block: of these kinds, or of all if none is named."""
        counts: Counter[CounterEvent] = Counter()
        self._watching.append((kinds or (WAIT, COPY, ALLOCATION), counts))
        try:
            yield counts
        finally:
            self._watching = [other for other in self._watching if other[1] is not counts]

    @contextlib.contextmanager
    def refused(self, *kinds: str, where: str) -> Iterator[None]:
        """Have events of these kinds raise an error inside the block."""
        self._refused.append((frozenset(kinds), where))
        try:
            yield
        finally:
            self._refused.pop()

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Refuse nothing inside the block, whatever is refused around it."""
        around, self._refused = self._refused, []
        try:
            yield
        finally:
            self._refused = around


COUNTERS = EventLog()
"""The one of this program."""


def place() -> str:
    """Return the file and line of the innermost frame whose code asks for something itself."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*PASSED, "<")):
        frame = frame.f_back
    name = frame.f_code.co_filename.rpartition("site-packages/")[2]
    return f"{name}:{frame.f_lineno}"


def count(events: Counter[CounterEvent], kind: str) -> int:
    """Return the number of events of a kind."""
    return sum(number for event, number in events.items() if event.kind == kind)
