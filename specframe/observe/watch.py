"""Calls of a run's observers; without observers they cost nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from specframe.contracts.drafts import RoundReport
from specframe.contracts.roles import Observer

_NOTHING = contextlib.nullcontext()


class Watch:
    """The observers of one run. Stages nest: time in an inner stage counts for the inner stage only."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.observers = list(observers)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Mark everything inside the ``with`` block as part of stage ``name``."""
        return self._stage(name) if self.observers else _NOTHING

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        for observer in self.observers:
            observer.enter(name)
        try:
            yield
        finally:
            for observer in self.observers:
                observer.leave(name)

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Report one forward pass of ``model`` ("target" or "draft") over ``rows`` rows of ``tokens`` tokens each."""
        for observer in self.observers:
            observer.forward(model, rows, tokens)

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
