"""Captured graphs by key, and what captures them."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import torch

from specframe.devices import kinds
from specframe.devices.held import Held
from specframe.devices.kinds import CapturedGraph
from specframe.errors import SpecframeError, SpecframeWarning
from specframe.model.attention.masks import power_of_two

Outputs = tuple[torch.Tensor, ...]

MOST = 64
"""Captured graphs of one kind that a cache keeps. Each takes some megabytes, for its outputs and its nodes; a run of one draft
length uses about ten, one for each bucket of rows and slots that it passes through."""


def without_collection() -> Callable[[], None]:
    """Have Python leave unreachable objects alone; return the function that puts back what was there before."""
    if not gc.isenabled():
        return lambda: None
    gc.disable()
    return gc.enable


UNCOLLECTED = Held(without_collection)
"""Python's search for unreachable objects is off: it would give up a graph that it finds while CUDA captures another one, which
breaks the captured graph."""


class EagerGraph:
    """A captured graph that calls the function again, for devices without graphs: shows that buffers and buckets are right."""

    def __init__(self, function: Callable[[], Outputs]) -> None:
        self._function = function

    def replay(self, rows: int) -> Outputs:
        """Call the function."""
        return tuple(output[:rows].clone() for output in self._function())


@attrs.define(eq=False)
class FirstCall:
    """A function that is captured: it works, or raises what it raises, the first time, and may not be capturable the second."""

    _function: Callable[[], Outputs]
    _worked: bool = False
    outputs: Outputs | None = None
    """What the first call has returned, until the function is captured."""

    def __call__(self) -> Outputs:
        """Call the function; raise RuntimeError where it has worked before."""
        try:
            outputs = self._function()
        except SpecframeError as error:
            if self._worked:
                raise RuntimeError(str(error)) from error
            raise
        if not self._worked:
            self._worked, self.outputs = True, outputs
        return outputs

    def replay(self, rows: int) -> Outputs:
        """Return what the first call has returned, in place of a graph that could not be captured."""
        assert self.outputs is not None, "it has worked"
        return tuple(output[:rows] for output in self.outputs)


Record = Callable[[Callable[[], Outputs]], CapturedGraph]
"""Captures a function."""


def recorder(device: torch.device) -> Record:
    """Return what captures functions on a device."""
    return kinds.of(device).recording or EagerGraph


class KeptGraph(NamedTuple):
    """A captured graph, and what holds the memory that it reads: a graph does not keep what it has not made itself."""

    buffers: Any
    """Its inputs."""
    recording: CapturedGraph
    function: Callable[[], Outputs]
    """What was captured."""
    constants: list[torch.Tensor]


class GraphCache:
    """Captured graphs by key: made the second time a key comes up, until one cannot be made; the last :data:`MOST` are kept."""

    def __init__(self, record: Record, what: str = "forwards") -> None:
        self._record, self._what = record, what
        self._seen: dict[tuple[Any, ...], int] = {}
        """The times that a key came up without being captured."""
        self._kept: dict[tuple[Any, ...], KeptGraph] = {}
        """The one that was used last at the end."""
        self._given_up = False
        self.new = 0
        """The times that a forward took longer than others of its shape: it was new, or was captured."""

    def __len__(self) -> int:
        return len(self._kept)

    def take(
        self, key: tuple[Any, ...], prepare: Callable[[], tuple[Any, Callable[[], Outputs]]], eager: int = 1
    ) -> KeptGraph | None:
        """Return the captured graph of a key with its buffers, or None where there is none.

        A function that has worked and cannot be captured is not called again: what is returned then serves this one replay.

        Args:
            key: what distinguishes shapes.
            prepare: returns the buffers of a new captured graph, filled, and the function that reads them.
            eager: times that the key comes up before it is captured.
        """
        if self._given_up:
            return None
        if key in self._kept:
            self._kept[key] = self._kept.pop(key)  # the last one of all
            return self._kept[key]
        if (seen := self._seen.get(key, 0)) < eager:
            self._seen[key] = seen + 1
            self.new += not seen
            return None
        while len(self._kept) >= MOST:
            unused = next(iter(self._kept))
            del self._kept[unused], self._seen[unused]
        buffers, function = prepare()
        self.new += 1
        first = FirstCall(function)
        try:
            with kinds.constants_noted() as constants, UNCOLLECTED:
                self._kept[key] = KeptGraph(buffers, self._record(first), function, constants)
        except RuntimeError as error:
            self._give_up(error)
            return None if first.outputs is None else KeptGraph(buffers, first, function, [])
        first.outputs = None  # they are the captured graph's now
        return self._kept[key]

    def clear(self) -> None:
        """Let go of all captured graphs."""
        self._kept.clear()
        self._seen.clear()

    def _give_up(self, error: RuntimeError) -> None:
        """Release all captured graphs and go on without, because memory is short or the model cannot be captured."""
        self._given_up = True
        self._kept.clear()
        kinds.free()
        reason = str(error).partition("\n")[0]
        warnings.warn(f"{self._what} are not captured as CUDA graphs: {reason}", SpecframeWarning, stacklevel=2)


def bucket(slots: int, least: int = 64) -> int:
    """Return a number of slots rounded up to a multiple of an eighth of its power of two, and of ``least``."""
    step = max(least, power_of_two(slots) // 8)
    return -(-slots // step) * step
