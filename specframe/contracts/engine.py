"""Engines, which decode requests round by round, and executors, which decide where an engine's models run."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any, Protocol, TypeVar

from specframe.contracts.drafts import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.contracts.round import Sequence

Value = TypeVar("Value")


class Clock(Protocol):
    """The time of a run: requests arrive by it."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    def jump(self, moment: float) -> None:
        """Go on at a later moment: nothing happens until then."""


class Engine(Protocol):
    """Decodes requests, a round at a time. Requests come and go between rounds."""

    peak_kv_bytes: int
    """The most bytes that all caches have held."""

    @property
    def idle(self) -> bool:
        """Whether every request has finished."""

    def add(self, request: Request) -> None:
        """Take a request; raise :class:`specframe.errors.PromptError` where it cannot be decoded."""

    def make_room(self, tokens: int) -> None:
        """Open caches with room for the whole batch and for sequences of ``tokens`` tokens, for requests that come later."""

    def abort(self, key: tuple[int, int]) -> Sequence | None:
        """End a request that has not finished, and return its sequence with the tokens it has; None: there is no such request."""

    def step(self) -> RoundReport | None:
        """Decode one round and return its report; None: the step gave no token, or the engine is idle."""

    def close(self) -> None:
        """Release the caches. Requests that have not finished are forgotten."""


class Executor(Protocol):
    """Decides in which processes the models of a run are, and on which devices.

    Where several processes decode the same rows, each is a rank: it has an engine of its own, and all take the same steps.
    """

    def open(self, recipe: Any, parts: Any, observers: Rows[Observer], clock: Clock) -> Engine:
        """Return an engine without requests.

        Args:
            recipe: the options of the run, a :class:`specframe.plugins.recipe.Recipe`.
            parts: the models, tokenizers and strategies that the recipe stands for, as this process has them: a
                :class:`specframe.engine.parts.Parts`.
            observers: objects that are told about every round.
            clock: tells when requests arrive, and when their time is up.
        """

    def agree(self, value: Value) -> Value:
        """Return rank 0's value, on every rank. The engine asks where ranks could part: by a clock, or by what was measured."""


class Agrees(Protocol):
    """What an engine asks of the executor that opened it."""

    def agree(self, value: Value) -> Value:
        """Return rank 0's value, on every rank."""


class Elsewhere(Executor, Protocol):
    """An executor that may run models in other processes than the one whose prompts they decode."""

    def home(self, recipe: Any) -> Any:
        """Return the recipe of the parts of this process, which make requests of prompts; asked before anything is loaded.

        Raises:
            OptionError: an option cannot go to another process.
        """


class TakesFiles(Executor, Protocol):
    """An executor that decodes files of prompts as a whole, for ``specframe run``. It offers "files"."""

    offers: frozenset[str]

    def decode_files(self, job: Any) -> tuple[int, int, Any]:
        """Decode what a :class:`specframe.cli.jobs.Job` asks for.

        Returns:
            The number of rows, the number of those now decoded that failed, and a :class:`specframe.observe.counts.RunReport`.
        """
