"""How commands end: interrupted, terminated, or with nobody who reads what they print."""

from __future__ import annotations

import errno
import importlib.abc
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from specframe_std.output_file import LockedFile

from specframe.__main__ import main
from specframe.cli import CommandLine, cli


class Broken(io.StringIO):
    """A stream that cannot be written to."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.broken = number, True

    def write(self, text: str) -> int:
        """Refuse any text."""
        raise OSError(self.number, os.strerror(self.number))

    def flush(self) -> None:
        """Refuse as well: there is always something left to write."""
        if not self.closed:
            raise OSError(self.number, os.strerror(self.number))

    def close(self) -> None:
        """Close without a last try."""


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Let signals do what they do in a process started from a terminal: in the background of a shell SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ended(command: Any, arguments: list[str]) -> Any:
    """Run a command and return its exit status."""
    with pytest.raises(SystemExit) as exit_:
        command(arguments, prog_name="specframe")
    return exit_.value.code


def command(work: Any) -> click.Command:
    """Return a command line with one command, which does some work."""
    group = CommandLine("specframe")
    group.get_command = lambda ctx, name: click.Command("work", callback=work)  # type: ignore[method-assign]
    return group


@pytest.mark.wide
@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_is_one_line_and_its_status(
    number: signal.Signals, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal ends a command with one line and 128 + its number, and is nobody's business afterwards."""
    before = signal.getsignal(number)

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        except KeyboardInterrupt as interruption:
            assert signal.getsignal(number) is signal.SIG_DFL  # the next one ends the process
            raise type(interruption)(" after 3 of 4") from None

    assert ended(command(work), ["work"]) == 128 + number
    assert capsys.readouterr().err == f"\n{word} after 3 of 4\n"
    assert signal.getsignal(number) is before


@pytest.mark.wide
def test_an_error_after_a_signal_is_the_signal(capsys: pytest.CaptureFixture[str]) -> None:
    """A signal that some library turned into another error is a signal all the same."""

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except KeyboardInterrupt:
            raise ImportError("initialization failed") from None

    assert ended(command(work), ["work"]) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


@pytest.mark.wide
@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(errno.EPIPE, 141, ""), (errno.ENOSPC, 2, "Error: standard output cannot be written: No space left on device\n")],
)
def test_output_that_cannot_be_printed(
    number: int, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command whose reader left ends without a word, one whose output has no room with a sentence."""
    monkeypatch.setattr(sys, "stdout", Broken(number))
    assert ended(cli, ["models", "list"]) == status
    assert capsys.readouterr().err == said


@pytest.mark.wide
def test_an_interruption_while_the_command_line_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interruption before the command line is there is one line and status 130 as well."""

    class Interrupting(importlib.abc.MetaPathFinder):
        """Interrupts the import of the command line."""

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            """Interrupt, or find nothing."""
            if name == "specframe.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "specframe.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert (exit_.value.code, capsys.readouterr().err) == (130, "\ninterrupted\n")


@pytest.mark.wide(but=["2"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_written_is_counted(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal that comes between a result's writing and its counting ends the run after both: its sentence is the file's state."""
    append, file = LockedFile.append, tmp_path / "out.jsonl"

    def interrupted(output: LockedFile, line: str, more: str = "") -> None:
        append(output, line, more)
        if file.read_bytes().count(b"\n") == 2:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(LockedFile, "append", interrupted)
    asked = ["run", "a", "b", "c", "--drafter", "none", "--max-new-tokens", "1", "--output", str(file)]
    with pytest.raises(SystemExit) as exit_:
        cli.main(asked, standalone_mode=False)
    assert exit_.value.code == 128 + number
    assert f" after 2 of 3 prompts; {file} holds 2 of 3 results, " in capsys.readouterr().err
    assert file.read_bytes().count(b"\n") == 2
