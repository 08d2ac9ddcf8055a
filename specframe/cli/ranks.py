"""Ranks of a command: of several processes that decode the same prompts, one reads and writes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TypeVar

from specframe.plugins.compose import strategy
from specframe.plugins.recipe import is_auto
from specframe.plugins.registry import registry

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


def ranks_of(executor: str) -> RankOutput:
    """Return the ranks that an executor of that name decodes on."""
    if RANK not in os.environ or is_auto(executor):
        return RankOutput()
    made = strategy(registry(), "executor", executor)
    return registry().entry("option", "ranks").factory(made) if "ranks" in made.offers else RankOutput()
