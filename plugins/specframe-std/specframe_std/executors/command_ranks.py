"""Ranks of a command: of several processes that decode the same prompts rank 0 reads and writes, and all end as it does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from specframe.cli.signals import UNREAD, Terminated
from specframe.errors import SpecframeError, sentence
from specframe.plugins.compose import strategy
from specframe.plugins.recipe import is_auto
from specframe.plugins.registry import registry
from specframe.text.prompts.prompt import Prompts

Value = TypeVar("Value")

RANK = "RANK"
"""The environment variable with a process's rank, as torchrun and others set it."""


class RankOutput:
    """The ranks of a command, seen from one of them. Those of this class are one process."""

    several = False
    """Whether an executor with ranks decodes."""
    writes = True
    """Whether this process reads prompts, and writes results."""

    def shared(self, make: Callable[[], Value]) -> Value:
        """Return what rank 0 makes, on every rank; of prompts, a list where there are several ranks."""
        return make()

    def one_end(self) -> contextlib.AbstractContextManager[None]:
        """End the command with rank 0's exit status on every rank; the others print nothing."""
        return contextlib.nullcontext()


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


def ranks_of(executor: str) -> RankOutput:
    """Return the ranks that an executor of that name decodes on."""
    if RANK not in os.environ or is_auto(executor):
        return RankOutput()
    made = strategy(registry(), "executor", executor)
    return SeveralRanks(made) if "ranks" in made.offers else RankOutput()


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
