"""Ranks of a command: of several processes that decode the same prompts, one reads and writes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from specframe.cli.signals import status_of
from specframe.errors import sentence
from specframe.plugins.compose import strategy
from specframe.plugins.recipe import is_auto
from specframe.plugins.registry import registry

Value = TypeVar("Value")

RANK = "RANK"
"""The environment variable with a process's rank, as torchrun and others set it."""


class Ranks:
    """The ranks of a command, seen from one of them.

    Args:
        executor: a :class:`specframe.contracts.engine.RankedExecutor`; None: there is one process.
    """

    def __init__(self, executor: Any = None) -> None:
        self._executor = executor

    @property
    def several(self) -> bool:
        """Whether an executor with ranks decodes."""
        return self._executor is not None

    @property
    def writes(self) -> bool:
        """Whether this process reads prompts, and writes results."""
        return self._executor is None or self._executor.rank == 0

    def shared(self, make: Callable[[], Value]) -> Value:
        """Return what rank 0 makes, on every rank."""
        made: Any = make() if self.writes else None
        return made if self._executor is None else self._executor.agree(made)

    @contextlib.contextmanager
    def one_end(self) -> Iterator[None]:
        """End the command with rank 0's exit status on every rank; the others print nothing."""
        if self._executor is None:
            yield
            return
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


def ranks_of(executor: str) -> Ranks:
    """Return the ranks that an executor of that name decodes on."""
    if RANK not in os.environ or is_auto(executor):
        return Ranks()
    made = strategy(registry(), "executor", executor)
    return Ranks(made if "ranks" in made.offers else None)
