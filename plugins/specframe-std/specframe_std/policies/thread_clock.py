"""Clocks for the seconds of rounds. A thread's clock stops while another program has its core."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from specframe.devices import kinds

try:
    import resource
except ImportError:  # Windows has no such module
    resource = None  # type: ignore[assignment]


class ClockReading(NamedTuple):
    """The counts of the thread that reads them."""

    wall: float
    """Seconds of the wall clock."""
    computed: float
    """Seconds for which the thread had a core."""
    waits: int
    """Times that the thread gave its core away to wait: for another thread, another process, a file."""
    thread: int


@functools.cache
def tells_waits() -> bool:
    """Return whether the system counts the waits of one thread. Linux does; a sandbox may show the same count at all times."""
    if not hasattr(resource, "RUSAGE_THREAD"):
        return False
    before = reading().waits
    time.sleep(1e-4)
    return reading().waits > before


def reading() -> ClockReading:
    """Return the present counts; it takes 3 microseconds."""
    waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    return ClockReading(time.perf_counter(), time.thread_time(), waits, threading.get_ident())


class ThreadClock:
    """Counts the seconds of a thread, without those for which it could have computed and another program had its core.

    Seconds for which the thread waits count. The system does not report how long a thread waited, but how often. So all seconds
    count between two readings with a wait in between.

    Args:
        read: returns the present counts.
    """

    def __init__(self, read: Callable[[], ClockReading] = reading) -> None:
        self._read, self._last, self._seconds = read, read(), 0.0

    def __call__(self) -> float:
        """Return the seconds since the clock was made."""
        now, last = self._read(), self._last
        passed = now.wall - last.wall
        if (now.thread, now.waits) == (last.thread, last.waits):
            passed = min(passed, now.computed - last.computed)
        self._last = now
        self._seconds += max(passed, 0.0)
        return self._seconds


def clock_of(device: torch.device) -> Callable[[], float]:
    """Return a clock for rounds of a device, in seconds.

    A round on a CPU takes the seconds of the thread that computes it. A device with a queue works on while the thread has no core,
    and so the wall clock serves. It serves also where the system does not count the waits of a thread.
    """
    return ThreadClock() if tells_waits() and not kinds.of(device).queues else time.perf_counter
