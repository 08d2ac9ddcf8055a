"""Calls of a run's observers; without observers they cost nothing."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.devices.kinds import NO_CONTEXT
from specframe.devices.out_of_memory import out_of_memory
from specframe.errors import SpecframeWarning


class Stage:
    """A stage of a round, reported to observers when it begins and when it ends."""

    def __init__(self, watch: Watch, name: str) -> None:
        self._watch, self._name = watch, name

    def __enter__(self) -> None:
        if self._watch.left is not None:
            self._watch.raise_left()
        for observer in self._watch.staged:
            try:
                observer.enter(self._name)
            except RuntimeError as error:
                self._watch.dismiss(observer, error)

    def __exit__(self, *_: object) -> None:
        for observer in self._watch.staged:
            try:
                observer.leave(self._name)
            except (Exception, SystemExit) as error:
                self._watch.put_off(observer, error)


class Stages(dict[str, AbstractContextManager[None]]):
    """The stages of a run by their names, made when they are first asked for."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __missing__(self, name: str) -> AbstractContextManager[None]:
        self[name] = Stage(self._watch, name) if self._watch.staged else NO_CONTEXT
        return self[name]


class Watch:
    """The observers of one run. Stages nest: time in an inner stage counts for the inner stage only.

    An observer for which the device has no memory is called no more, with a warning, and the run goes on: the round is neither
    lost nor decoded again for it.
    """

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.left: BaseException | None = None
        """What an observer raised when a stage ended."""
        self._stages = Stages(self)
        self.stage: Callable[[str], AbstractContextManager[None]] = self._stages.__getitem__
        """Marks everything inside a ``with`` block as part of the stage of a name."""
        self.held: list[tuple[Any, ...]] | None = None
        """The forwards not yet reported, each with what reports it, or None if all are reported at once."""
        self._tell(list(observers))

    def _tell(self, observers: list[Observer]) -> None:
        """Call these observers from now on. Those that do nothing at a stage or a forward are not called there."""
        self.observers = observers
        self.staged = [one for one in observers if hears(one, "enter") or hears(one, "leave")]
        """Those that receive stages."""
        self._passed = [one for one in observers if hears(one, "forward")]
        self._fed = [one for one in observers if hears(one, "fed")]
        self._stages.clear()

    @contextlib.contextmanager
    def holding(self) -> Iterator[list[tuple[Any, ...]]]:
        """Tell nobody of stages and forwards inside the block, where a round is captured; hand out what tells of its forwards."""
        self.held, self.stage = [], lambda name: NO_CONTEXT
        try:
            yield self.held
        finally:
            self.held, self.stage = None, self._stages.__getitem__

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Report one forward pass of ``model`` ("target" or "draft") over ``rows`` rows of ``tokens`` tokens each."""
        if self.held is not None:
            self.held.append((self.forward, model, rows, tokens))
            return
        for observer in self._passed:
            try:
                observer.forward(model, rows, tokens)
            except RuntimeError as error:
                self.dismiss(observer, error)

    def fed(self, model: str, real: int, computed: int) -> None:
        """Report forwards of ``model`` that have computed ``computed`` tokens, of which ``real`` were no padding."""
        if self.held is not None:
            self.held.append((self.fed, model, real, computed))
            return
        for observer in self._fed:
            try:
                observer.fed(model, real, computed)
            except RuntimeError as error:
                self.dismiss(observer, error)

    def spent(self, stages: Mapping[str, float]) -> None:
        """Report seconds of stages that passed in other processes."""
        for observer in self.observers:
            observer.spent(stages)

    def round(self, report: RoundReport) -> None:
        """Report a finished round."""
        self.raise_left()
        for observer in self.observers:
            try:
                observer.round(report)
            except RuntimeError as error:
                self.dismiss(observer, error)

    def put_off(self, observer: Observer, error: BaseException) -> None:
        """Raise what an observer raised when a stage ended at its next call: what the stage has made is not lost."""
        if isinstance(error, RuntimeError) and out_of_memory(error):
            self.dismiss(observer, error)
        else:
            self.left = self.left or error

    def raise_left(self) -> None:
        """Raise what was put off."""
        if self.left is not None:
            error, self.left = self.left, None
            raise error

    def dismiss(self, observer: Observer, error: RuntimeError) -> None:
        """Call an observer no more if it raised for lack of the device's memory; raise any other error."""
        if not out_of_memory(error):
            raise error
        self._tell([one for one in self.observers if one is not observer])  # a list that is gone through stays as it is
        why = f"observer {type(observer).__qualname__} receives nothing more: the device's memory ran out in it"
        warnings.warn(why, SpecframeWarning, stacklevel=2)


def hears(observer: Observer, member: str) -> bool:
    """Return whether an observer has a member of its own, and not that of the protocol, which does nothing."""
    return getattr(getattr(observer, member), "__func__", None) is not getattr(Observer, member)
