"""A client of a run's engine: it times requests, and keeps no more of them in flight than it may."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from collections.abc import Sequence as Rows
from typing import Any

import attrs

from specframe.contracts.engine import Clock, Engine, Executor
from specframe.contracts.reports import Progress
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.contracts.round import Sequence
from specframe.engine.engine_clock import HandClock
from specframe.errors import OptionError
from specframe.value_checks import Wrapper
from specframe_lab.serving.request_moments import Key, Moments

BOTH_GROUPS = (
    "--max-concurrency: prompts cannot be held back where some are longer than the length at which the target's rotary factors "
    "change, and some are not: leave either out"
)


class BenchService(Wrapper):
    """An executor around another one: its engines receive requests from a client.

    Args:
        executor: opens the engines.
        most: requests in flight, sent and not at their end, or None if each is sent when it arrives.
        clock: makes the clock of a run, which is one of its observers if it watches, or None if the run's own.
    """

    def __init__(self, executor: Executor, most: int | None = None, clock: Callable[[], Clock] | None = None) -> None:
        super().__init__(executor)
        self._most, self._make_clock = most, clock
        self.moments = Moments(HandClock())
        """The moments of the latest run."""

    def open(self, recipe: Any, parts: Any, observers: Rows[Observer], clock: Clock) -> Engine:
        """Return an engine without requests, with a client before it."""
        clock = self._make_clock() if self._make_clock else clock
        clocks = [clock] if hasattr(clock, "round") and clock not in observers else []
        self.moments = Moments(clock)
        engine = self.__wrapped__.open(recipe, parts, [*clocks, *observers, self.moments], clock)
        client: Any = Client(engine, self.moments, self._most)
        return client


class PassClock(HandClock, Observer):
    """A clock that advances by a second with every pass of the target: what it measures is the same on every machine.

    On a device that a pass keeps busy with reading weights, passes take the same time whatever they hold. Passes of the draft model
    take none. The clock is an observer of the run that it times.
    """

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Let the time of a pass elapse."""
        self.now += 1.0 if model == "target" else 0.0


class Client(Wrapper):
    """Sends requests to an engine in the order of their arrival, while there are fewer than ``most`` in flight.

    A request that may not be sent yet is known to the engine, so that caches have room for it, and never arrives there.
    """

    def __init__(self, engine: Engine, moments: Moments, most: int | None) -> None:
        super().__init__(engine)
        self._moments, self._most = moments, most
        self._held: list[Request] = []
        self._flying: set[Key] = set()

    def add(self, request: Request) -> None:
        """Take a request."""
        if self._most is None:
            self.__wrapped__.add(request)
            self._moments.sent(request)
        else:
            self.__wrapped__.add(attrs.evolve(request, arrival=math.inf))
            bisect.insort(self._held, request, key=lambda one: one.arrival)

    def abort(self, key: Key) -> Sequence | None:
        """End a request that has not finished, and return its sequence."""
        self._held = [request for request in self._held if request.key != key]
        self._flying.discard(key)
        return self.__wrapped__.abort(key)

    def step(self) -> Progress | None:
        """Send what may be sent, and decode one round."""
        while self._held and len(self._flying) < (self._most or 0):
            self._send(self._held.pop(0))
        report = self.__wrapped__.step()
        if math.isinf(self._moments.clock.now):
            raise OptionError(BOTH_GROUPS)
        if report is not None:
            self._flying.difference_update(sequence.request.key for sequence in report.finished)
        return report

    def _send(self, request: Request) -> None:
        self.__wrapped__.abort(request.key)
        self.__wrapped__.add(request)
        self._flying.add(request.key)
        self._moments.sent(request)
