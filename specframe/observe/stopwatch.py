"""The clock of a run: seconds per stage."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping

import torch

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.devices import kinds
from specframe.devices.kinds import Event

REMOTE = "remote"
"""The stage in which other processes decode, and this one waits for them. Their own stages are reported, too."""


class Stopwatch(Observer):
    """Seconds per stage, and of all rounds together.

    On a device with events, such as CUDA, a mark is one. The time between two events is the device's own time; it is read after
    both events have passed, without synchronisation. The caller's time between rounds is not counted.

    The stopwatch is also the clock for the arrival of requests: the time of all rounds plus the skipped idle time.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds = self.idle = 0.0
        self._device, self._event = device, kinds.of(device).event
        self._stages: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._slices: deque[tuple[str, Event, Event]] = deque()
        self._mark = 0.0
        """The host's time at the latest begin or end of a stage."""
        self._latest: Event | None = None
        """The device's, where it has events."""
        self._round_started: float | None = None

    def enter(self, stage: str) -> None:
        """Pause the surrounding stage and start this one."""
        now = time.perf_counter()
        if self._round_started is None:
            self._round_started = now
        outer = self._open[-1] if self._open else None
        if self._event is not None:
            self._cut(self._event, outer)
        elif outer is not None:
            self._stages[outer] += now - self._mark
        self._mark = now
        self._open.append(stage)

    def leave(self, stage: str) -> None:
        """Stop this stage and resume the surrounding stage."""
        now, stage = time.perf_counter(), self._open.pop()
        if self._event is not None:
            self._cut(self._event, stage)
        else:
            self._stages[stage] += now - self._mark
        self._mark = now

    def round(self, report: RoundReport) -> None:
        """Add up the round and read the marks that have passed."""
        if self._round_started is not None:
            self.seconds += time.perf_counter() - self._round_started
            self._round_started = None
        while self._slices and self._slices[0][2].query():
            self._read(*self._slices.popleft())

    def spent(self, stages: Mapping[str, float]) -> None:
        """Add seconds of stages that passed in other processes."""
        for stage, seconds in stages.items():
            self._stages[stage] += seconds

    @property
    def now(self) -> float:
        """Seconds since the run began, without the time between rounds."""
        open_round = time.perf_counter() - self._round_started if self._round_started is not None else 0.0
        return self.seconds + self.idle + open_round

    def jump(self, moment: float) -> None:
        """Advance the clock to a later moment, since nothing is to be done until then."""
        self.idle += max(0.0, moment - self.now)

    def stages(self) -> dict[str, float]:
        """Return seconds per stage. With events this waits for the last marks."""
        while self._slices:
            self._slices[0][2].synchronize()
            self._read(*self._slices.popleft())
        return {stage: seconds for stage, seconds in self._stages.items() if stage != REMOTE}

    def _cut(self, event: Callable[[torch.device], Event], stage: str | None) -> None:
        """End the device's slice of time since the last event, which belongs to ``stage``, with a new event."""
        now = event(self._device)
        now.record()
        if stage is not None and self._latest is not None:
            self._slices.append((stage, self._latest, now))
        self._latest = now

    def _read(self, stage: str, start: Event, end: Event) -> None:
        self._stages[stage] += start.elapsed_time(end) / 1000
