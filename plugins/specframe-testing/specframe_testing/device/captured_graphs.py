"""Graphs of the simulated device: operations are captured with the memory they read and write, and replayed in the same memory.

As in a CUDA graph, nothing of Python is replayed: a number that Python computed stays as it was when the graph was captured. Nor
does a graph keep the memory that it reads and has not made itself: a replay after it was given back is an error. So is a captured
graph during which the same thread gives another graph up.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch.utils._python_dispatch import _disable_current_modes

from specframe_testing.device.counters import COPY, COUNTERS, LAUNCH, WAIT
from specframe_testing.device.device_memory import NUMBERS, MemoryBlock
from specframe_testing.device.device_operators import Rules

Outputs = tuple[torch.Tensor, ...]

OVERLAPPING = 1
"""The answer of torch for a tensor whose elements share memory, as an expanded one's do."""


@attrs.frozen
class CapturedStep:
    """One operation of a graph."""

    func: Any
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[torch.Tensor]
    """Memory of its own that its results go to, or nothing for a view, or if it writes to its arguments."""

    def replay(self) -> None:
        """Do it again, with the present values of its arguments."""
        found = self.func(*self.args, **self.kwargs)
        for old, new in zip(self.results, tensors(found), strict=False):
            old.copy_(new)


class Written:
    """What a thread writes to of the memory that was there before, and what that held."""

    def __init__(self) -> None:
        self._first = next(NUMBERS)
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(self, block: MemoryBlock, values: torch.Tensor) -> None:
        """Note values that may be about to be written to: not those that an operator reads, and that share memory."""
        if block.number < self._first and torch._debug_has_internal_overlap(values) != OVERLAPPING:
            self._before.append((values, values.clone()))

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Have memory hold inside the block what it held before, whatever is written to it there."""
        after = [values.clone() for values, _ in self._before]
        self._copy([before for _, before in self._before])
        try:
            yield
        finally:
            self._copy(after)

    def _copy(self, held: list[torch.Tensor]) -> None:
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            for (values, _), one in zip(reversed(self._before), reversed(held), strict=True):
                values.copy_(one)


class Tape:
    """The operations of a graph, in order."""

    def __init__(self) -> None:
        self.steps: list[CapturedStep] = []
        self._outside: dict[int, tuple[weakref.ref[MemoryBlock], Any]] = {}
        """Memory that was there before, by its number, and the operation that uses it first."""
        self._first = next(NUMBERS)
        self.broken = False
        """Whether this thread has given another graph up since the captured graph began."""

    def add(
        self, func: Any, args: list[Any], kwargs: dict[str, Any], found: Any, own: Rules, used: Iterable[MemoryBlock]
    ) -> None:
        """Record an operation that was just done in such memory."""
        for block in used:
            if block.number < self._first:
                self._outside.setdefault(block.number, (weakref.ref(block), func))
        if own.writes:
            self.steps.append(CapturedStep(func, args, kwargs, []))
        elif own.fresh:
            self.steps.append(CapturedStep(func, args, kwargs, tensors(found)))

    def require_memory(self) -> None:
        """Raise RuntimeError where memory that the graph has not made is no longer there: on CUDA others may have it."""
        for block, func in self._outside.values():
            if block() is None:
                raise RuntimeError(f"{func} of a graph uses memory that was given back after the graph was recorded")


_CURRENT = threading.local()


def tape() -> Tape | None:
    """Return the tape of the graph that this thread is captured graph."""
    return getattr(_CURRENT, "tape", None)


def written() -> Written | None:
    """Return what this thread notes what it writes to by, or None."""
    return getattr(_CURRENT, "written", None)


@contextmanager
def noted() -> Iterator[Written]:
    """Note what is written to inside the block."""
    made = _CURRENT.written = Written()
    try:
        yield made
    finally:
        _CURRENT.written = None


@contextmanager
def recording() -> Iterator[Tape]:
    """Record the operations of this thread inside the block; waits and copies from the host are refused."""
    made = _CURRENT.tape = Tape()
    try:
        with COUNTERS.refused(WAIT, COPY, where="while a graph is recorded"):
            yield made
    finally:
        _CURRENT.tape = None
    if made.broken:
        raise RuntimeError("a graph was given up while its thread recorded another one")


def given_up() -> None:
    """Break the captured graph that this thread is at: CUDA refuses to give a graph up meanwhile."""
    if (current := tape()) is not None:
        current.broken = True


def tensors(found: Any) -> list[torch.Tensor]:
    """Return the tensors among an operation's results."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [one for one in found if isinstance(one, torch.Tensor)] if isinstance(found, list | tuple) else []


class SimRecording:
    """A captured function, as :class:`specframe.devices.cuda.CudaGraph` is."""

    made = replays = 0
    """Graphs captured, and replays of any of them, since the program began."""

    def __init__(self, function: Callable[[], Outputs]) -> None:
        with noted() as first:
            self._first: Outputs | None = function()  # as on CUDA
        with first.undone(), recording() as made:  # it leaves no trace: on CUDA nothing is computed meanwhile
            self._outputs = function()
        self._tape = made
        for step in made.steps:
            for result in step.results:
                spoil(result)
        SimRecording.made += 1
        weakref.finalize(self, given_up).atexit = False

    def replay(self, rows: int) -> Outputs:
        """Do every operation again and return copies of the outputs' first rows; the first time they are there already."""
        SimRecording.replays += 1
        COUNTERS.note(LAUNCH, "graph")
        if (first := self._first) is not None:
            self._first = None
            return tuple(output[:rows].clone() for output in first)
        self._tape.require_memory()
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():  # they are Python's, too
            for step in self._tape.steps:
                step.replay()
        return tuple(output[:rows].clone() for output in self._outputs)


def spoil(result: torch.Tensor) -> None:
    """Overwrite what a captured graph computed: on CUDA nothing is computed before the first replay."""
    if result.is_floating_point():
        result.fill_(torch.nan)
    elif result.dtype != torch.bool:
        result.fill_(torch.iinfo(result.dtype).max)
