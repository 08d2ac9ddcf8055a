"""An executor and its engine, whose author knows the contracts alone: it has another executor's engine do the work."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import pytest
from specframe_testing.conformance import ExecutorSuite

from specframe.contracts.engine import Clock, Engine, Executor, Value
from specframe.contracts.reports import Progress
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.contracts.round import Sequence
from specframe.plugins.registry import registry


class Relay:
    """Has requests decoded by the engines of another executor."""

    offers = frozenset[str]()

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    def open(self, recipe: object, parts: object, observers: Rows[Observer], clock: Clock) -> RelayEngine:
        return RelayEngine(self._inner.open(recipe, parts, observers, clock))

    def agree(self, value: Value) -> Value:
        return self._inner.agree(value)


class RelayEngine:
    """An engine with the members of the protocol, and no others."""

    def __init__(self, inner: Engine) -> None:
        self._inner, self.remote, self.peak_kv_bytes, self.state_bytes = inner, 0, 0, 0

    @property
    def idle(self) -> bool:
        return self._inner.idle

    def add(self, request: Request) -> None:
        self._inner.add(request)

    def make_room(self, tokens: int) -> None:
        self._inner.make_room(tokens)

    def abort(self, key: tuple[int, int]) -> Sequence | None:
        return self._inner.abort(key)

    def step(self) -> Progress | None:
        progress = self._inner.step()
        self.peak_kv_bytes, self.state_bytes = self._inner.peak_kv_bytes, self._inner.state_bytes
        return progress

    def close(self) -> None:
        self._inner.close()


@pytest.mark.wide(but=["test_equals_reference[ragged]"])
class TestRelay(ExecutorSuite):
    """It passes the suite."""

    def make(self) -> Relay:
        return Relay(registry().make("executor", "local"))
