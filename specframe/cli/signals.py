"""Early ends of commands: by an interruption, by SIGTERM, or because the reader of standard output has left."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import click

from specframe.errors import OptionError

UNREAD = 141
"""Exit status when the reader of standard output has left: 128 + SIGPIPE, as shells report it for other programs."""
SCREEN_FAULTS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO})
"""Error numbers of the operating system when standard output or standard error cannot be written."""


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM, which is handled like an interruption."""


ENDINGS = {
    signal.SIGINT: (KeyboardInterrupt, "interrupted"),
    signal.SIGTERM: (Terminated, "terminated"),
}
"""Signals that end a command, each with its exception and its word in the message. The exit status is 128 + the signal."""


class Signals:
    """Raises an exception at the first signal that ends a command; the second one ends the process at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        """Install handlers for the signals that have no handler yet."""
        if threading.current_thread() is threading.main_thread():
            for number in ENDINGS:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the handlers. A signal that is ignored by now stays so: a rank whose exit status is decided may not be ended."""
        for number, handler in self._before.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for other in self._before:
            signal.signal(other, signal.SIG_DFL)
        if _whole:
            _whole[-1].append(number)
            return
        raise ENDINGS[signal.Signals(number)][0]


_whole: list[list[int]] = []
"""The signals that have come in each block of :func:`uninterrupted` that has begun."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let the block come to its end before a signal ends the command, so that what it does is done as a whole or not at all."""
    came: list[int] = []
    _whole.append(came)
    try:
        yield
    finally:
        _whole.pop()
        if came:
            raise ENDINGS[signal.Signals(came[0])][0]


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """End an interrupted command with at most one line and the exit status that a shell expects.

    An error after a signal counts as caused by the signal, since C code may turn the signal's exception into another.
    """
    with Signals() as signals:
        try:
            yield
        except KeyboardInterrupt as interruption:
            number = signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT
            leave(number, str(interruption))
        except (click.exceptions.Exit, click.ClickException):
            raise
        except Exception as error:
            if signals.received:
                leave(signal.Signals(signals.received))
            if not of_screen(error):
                raise
            silence()
            if isinstance(error, BrokenPipeError):
                sys.exit(UNREAD)
            raise write_error(error) from error


def leave(number: signal.Signals, more: str = "") -> None:
    """Say that a signal ended the command, and exit."""
    with contextlib.suppress(OSError):
        click.echo(f"\n{ENDINGS[number][1]}{more}", err=True)
    sys.exit(128 + number)


def of_screen(error: BaseException) -> bool:
    """Return whether an error comes from standard output or standard error; errors of files have a file name."""
    return isinstance(error, OSError) and error.filename is None and error.errno in SCREEN_FAULTS


def write_error(error: BaseException, more: str = "") -> OptionError:
    """Return the error that standard output cannot be written, with the reason."""
    return OptionError(f"standard output cannot be written: {getattr(error, 'strerror', None) or error}{more}")


def silence() -> None:
    """Discard all further output, so that the interpreter does not fail on it at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError, ValueError):  # no descriptor of its own
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


class Screen:
    """Guard of a run's printed output.

    Args:
        needed: whether the run ends when nothing can be printed any more. Otherwise it goes on, since a file keeps its results.
    """

    def __init__(self, needed: bool) -> None:
        self._needed = needed
        self.fault: BaseException | None = None

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Guard a block that prints; note a failure to print."""
        try:
            yield
        except OSError as error:
            if self._needed or not of_screen(error):
                raise
            self.fault = self.fault or error
            silence()

    def check(self) -> None:
        """Raise :class:`OptionError` if something could not be printed, unless the reader has left."""
        if self.fault and not isinstance(self.fault, BrokenPipeError):
            raise write_error(self.fault, "; the results are where --output says")
