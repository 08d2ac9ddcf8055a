"""An executor and its engine, whose author knows the contracts alone: it has another executor's engine do the work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Rows
from typing import Any

import pytest
from command_line import invoke, refusal
from specframe_testing.conformance import ExecutorSuite

from specframe.contracts.engine import Clock, Engine, Executor, Value
from specframe.contracts.reports import Progress
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.contracts.round import Sequence
from specframe.plugins.registry import add_entry, registry


class Relay:
    """Has requests decoded by the engines of another executor."""

    offers = frozenset[str]()

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    def open(self, recipe: object, parts: object, observers: Rows[Observer], clock: Clock) -> RelayEngine:
        return RelayEngine(self._inner.open(recipe, parts, observers, clock))

    def broadcast(self, value: Value) -> Value:
        return self._inner.broadcast(value)


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


class Folders:
    """An executor that takes the files of a command as a whole, and decodes nothing."""

    offers = frozenset({"files"})
    asked: Mapping[str, Any]

    def open(self, *_: Any) -> None:
        """Not called."""

    def broadcast(self, value: Value) -> Value:
        return value

    def run_files(self, asked: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[int, str]:
        Folders.asked = {**asked, "settings": settings}
        return 2, "specframe run: figures\n"


@pytest.fixture
def _folders() -> Iterator[None]:
    """Register the executor "folders" for one test."""
    add_entry(registry(), "specframe-stranger", "executor", "folders", Folders)
    yield
    registry.cache_clear()


@pytest.mark.usefixtures("_folders")
def test_an_executor_that_takes_files_is_given_the_command() -> None:
    """It gets the parameters of the command, those that results depend on apart; its failed rows and figures are the command's."""
    files = ["--prompts", "p", "--output", "o", "--report", "-", "--top-k", "3", "--chat"]
    done = invoke("run", "--executor", "folders", *files)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "specframe run: figures\n", ""), done.output
    asked, settings = Folders.asked, Folders.asked["settings"]
    assert (asked["prompts"], asked["output"], asked["limit"], asked["executor"]) == ("p", "o", None, "folders")
    assert (settings["top_k"], settings["chat"], settings["max_new_tokens"]) == (3, True, asked["max_new_tokens"])
    assert "executor" not in settings


@pytest.mark.usefixtures("_folders")
def test_a_command_of_steps_refuses_an_executor_that_takes_files() -> None:
    """A command that steps an engine refuses it in one sentence, before anything is loaded."""
    told = refusal("verify", "--executor", "folders")
    assert "--executor: expected one of one process, such as local, got 'folders'" in told
