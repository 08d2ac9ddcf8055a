"""A clock that counts forward passes: what it measures is the same on every machine."""

from __future__ import annotations

from collections.abc import Mapping

from specframe.contracts.roles import Observer
from specframe.engine.engine_clock import HandClock

ONE_SECOND = {"target": 1.0}
"""Seconds of a pass by model: one of the target takes a second, one of the draft model none. On a device that a pass keeps busy
with reading weights, passes take the same time whatever they hold."""


class PassClock(HandClock, Observer):
    """A clock that advances by a fixed time with every forward pass. It is an observer of the run that it times.

    Args:
        seconds: seconds of a pass of each model, "target" and "draft"; a model without an entry takes none.
    """

    def __init__(self, seconds: Mapping[str, float] = ONE_SECOND) -> None:
        self._seconds = seconds

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Let the time of a pass elapse."""
        self.now += self._seconds.get(model, 0.0)
