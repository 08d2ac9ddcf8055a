"""A command on several ranks: rank 0 reads and writes, and all end with its exit status."""

from __future__ import annotations

import contextlib
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from specframe_std.executors.command_ranks import SeveralRanks, ranks_of, status_of

from specframe.cli import cli
from specframe.cli.signals import Signals, Terminated
from specframe.engine.local_engine import LocalEngine
from specframe.errors import ModelError
from specframe.plugins.hookspecs import hookimpl
from specframe.plugins.registry import offer, registry


class Several:
    """An executor whose other ranks are thought of: what rank 0 agreed on is ``shared``, its exit status is ``status``."""

    offers = frozenset({"ranks"})

    shared: list[Any] = []
    ends: list[tuple[int, str]] = []
    rank = 0
    status: int | None = None

    def open(self, recipe: Any, parts: Any, observers: Any, clock: Any) -> LocalEngine:
        return LocalEngine(recipe, parts, observers, clock, self)

    def broadcast(self, value: Any) -> Any:
        if self.rank and value is None:
            return self.shared.pop(0)
        if not self.rank:
            self.shared.append(value)
        return value

    def barrier(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext(lambda: None)

    def end(self, status: int, told: str) -> int:
        self.ends.append((status, told))
        return status if self.status is None else self.status


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Several]]:
    """Register the executor "several" for one test, in a process that is a rank."""
    plugin = types.SimpleNamespace()

    def implementation(register: Any) -> None:
        register("several", Several)

    plugin.specframe_register_executors = hookimpl(implementation, specname="specframe_register_executors")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(Several, "shared", [])
    monkeypatch.setattr(Several, "ends", [])
    offer(registry(), plugin, "specframe-stranger")
    yield Several
    registry.cache_clear()


@pytest.mark.wide
def test_one_process_has_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ranks a process writes, and shares with nobody; neither has the executor of one process ranks."""
    monkeypatch.delenv("RANK", raising=False)
    alone = ranks_of("whatever")
    with alone.one_end():
        assert (alone.writes, alone.several, alone.shared(lambda: 3)) == (True, False, 3)
    monkeypatch.setenv("RANK", "1")
    assert not ranks_of("auto").several
    assert not ranks_of("local").several


@pytest.mark.wide
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelError("no"), 2),
        (click.UsageError("no"), 2),
        (SystemExit(3), 3),
        (SystemExit("no"), 1),
        (KeyboardInterrupt(), 130),
        (Terminated(), 143),
        (BrokenPipeError(), 141),
    ],
    ids=repr,
)
def test_statuses(error: BaseException, status: int) -> None:
    """An error has the exit status that the command ends with."""
    assert status_of(error) == status


@pytest.mark.wide
@pytest.mark.parametrize(("rank", "error"), [(1, ModelError("no layers")), (1, None), (0, ModelError("no layers"))])
def test_ranks_end_with_the_status_of_rank_zero(rank: int, error: Exception | None, capsys: Any) -> None:
    """A rank that does not write prints nothing and exits with rank 0's status; rank 0 raises its own error."""
    executor: Any = types.SimpleNamespace(rank=rank, ends=[])
    executor.end = lambda *given: executor.ends.append(given) or 141

    def work() -> None:
        print("mine")
        print("mine", file=sys.stderr)
        if error:
            raise error

    with pytest.raises(SystemExit if rank else ModelError) as ended, SeveralRanks(executor).one_end():
        work()
    assert executor.ends == [(2, "no layers") if error else (0, "")]
    assert capsys.readouterr() == (("", "") if rank else ("mine\n", "mine\n"))
    assert getattr(ended.value, "code", None) == (141 if rank else None)


@pytest.mark.wide
def test_other_ranks_read_and_write_nothing(
    several: type[Several], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Prompts and what is done already come from rank 0; another rank touches no file, and prints nothing."""
    prompts, out, report = (str(tmp_path / name) for name in ("prompts.txt", "out.jsonl", "report.json"))
    Path(prompts).write_text("import os\nclass Stack:\n")
    command = ["run", "--executor", "several", "--prompts", prompts, "--output", out, "--report", report]
    command += ["--max-new-tokens", "4"]
    first = CliRunner().invoke(cli, command)
    assert (first.exit_code, several.ends) == (0, [(0, "")]), first.output
    written = Path(out).read_text()
    for path in (prompts, report):
        Path(path).unlink()
    monkeypatch.setattr(Several, "rank", 1)
    asked = [one for one in several.shared if isinstance(one, list | frozenset)]
    monkeypatch.setattr(Several, "shared", asked)
    second = CliRunner().invoke(cli, command)
    assert (second.exit_code, second.output) == (0, "")
    assert Path(out).read_text() == written
    assert not Path(report).exists()


def test_a_settled_status_is_not_ended_by_a_signal() -> None:
    """A signal that an executor ignores at its end stays ignored until the process ends; others get their handlers back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with Signals():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
