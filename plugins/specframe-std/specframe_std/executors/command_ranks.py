"""Commands of several processes that decode the same prompts: rank 0 reads and writes, and all end as it does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from specframe.cli.ranks import RankOutput, Value
from specframe.cli.signals import UNREAD, Terminated
from specframe.errors import SpecframeError, sentence
from specframe.text.prompts.lazy import Prompts


class SeveralRanks(RankOutput):
    """The ranks of a command, of which one reads and writes, seen from one of them.

    Args:
        executor: a :class:`specframe.contracts.engine.RankedExecutor`.
    """

    several = True

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.writes = executor.rank == 0

    def shared(self, make: Callable[[], Value]) -> Value:
        """Return what rank 0 makes, on every rank."""
        made: Any = make() if self.writes else None
        return self._executor.broadcast([*made] if isinstance(made, Prompts) else made)  # an open file cannot be sent

    @contextlib.contextmanager
    def one_end(self) -> Iterator[None]:
        """End the command with rank 0's exit status on every rank; the others print nothing."""
        try:
            with contextlib.nullcontext() if self.writes else silence():
                yield
        except BaseException as error:
            status = self._executor.end(status_of(error), sentence(error))
            if self.writes:
                raise
        else:
            status = self._executor.end(0, "")
        if status and not self.writes:
            sys.exit(status)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Print nothing inside the block."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def status_of(error: BaseException) -> int:
    """Return the exit status of a command that an error ends."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    if isinstance(error, click.exceptions.Exit | click.ClickException):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, BrokenPipeError):
        return UNREAD
    return 2 if isinstance(error, SpecframeError) else 1
