"""Calls of a run's observers; without observers they cost nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from specframe.contracts.drafts import RoundReport
from specframe.contracts.roles import Observer

_NOTHING = contextlib.nullcontext()


class Stage:
    """A stage of a round, told to observers when it begins and when it ends."""

    def __init__(self, observers: list[Observer], name: str) -> None:
        self._observers, self._name = observers, name

    def __enter__(self) -> None:
        for observer in self._observers:
            observer.enter(self._name)

    def __exit__(self, *_: object) -> None:
        for observer in self._observers:
            observer.leave(self._name)


class Watch:
    """The observers of one run. Stages nest: time in an inner stage counts for the inner stage only."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.observers = list(observers)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Mark everything inside the ``with`` block as part of stage ``name``."""
        return Stage(self.observers, name) if self.observers else _NOTHING

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Report one forward pass of ``model`` ("target" or "draft") over ``rows`` rows of ``tokens`` tokens each."""
        for observer in self.observers:
            observer.forward(model, rows, tokens)

    def spent(self, stages: Mapping[str, float]) -> None:
        """Report seconds of stages that passed in other processes, to the observers that count them."""
        for observer in self.observers:
            if tell := getattr(observer, "spent", None):
                tell(stages)

    def round(self, report: RoundReport) -> None:
        """Report a finished round."""
        for observer in self.observers:
            observer.round(report)


class Watcher:
    """An observer that does nothing. Subclass it and override the methods you need."""

    def enter(self, stage: str) -> None:
        """Called when a stage begins."""

    def leave(self, stage: str) -> None:
        """Called when a stage ends."""

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Called for each forward pass of ``model``, "target" or "draft"."""

    def round(self, report: RoundReport) -> None:
        """Called after each round."""
