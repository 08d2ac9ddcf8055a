"""Engines, which decode requests round by round, and executors, which decide where an engine's models run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from specframe.contracts.reports import Progress
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
    """The most bytes that all caches have held, states included."""
    state_bytes: int
    """The most bytes that the states of layers without keys and values have held, with what a round keeps until it is committed."""
    remote: int
    """Sequences that other processes decode at once, between its steps too, or 0 if this process decodes."""

    @property
    def idle(self) -> bool:
        """Whether every request has finished."""

    def add(self, request: Request) -> None:
        """Take a request; raise :class:`specframe.errors.PromptError` where it cannot be decoded."""

    def make_room(self, tokens: int) -> None:
        """Open caches with room for the whole batch and for sequences of ``tokens`` tokens, for requests that come later."""

    def abort(self, key: tuple[int, int]) -> Sequence | None:
        """End a request that has not finished, and return its sequence with the tokens it has, or None if there is no such request.

        Where there are several ranks, all of them call it, and the request of rank 0's call ends.
        """

    def step(self) -> Progress | None:
        """Decode one round and return its progress, or None if the step gave no token, or the engine is idle."""

    def close(self) -> None:
        """Release the caches. Requests that have not finished are forgotten."""


class Broadcasts(Protocol):
    """What an engine asks of the executor that opened it."""

    offers: frozenset[str]
    """What else the executor can do: "remote", "loading", "ranks", "datasets", "files"."""

    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value, on every rank. Engines ask where ranks could part: by a clock, or by what was measured."""


class Executor(Broadcasts, Protocol):
    """Decides in which processes the models of a run are, and on which devices.

    Where several processes decode the same rows, each is a rank: it has an engine of its own, and all take the same steps.
    """

    def open(self, recipe: object, parts: object, observers: Rows[Observer], clock: Clock) -> Engine:
        """Return an engine without requests.

        Args:
            recipe: the options of the run, to be handed on as they are or with other values (``attrs.evolve``).
            parts: the models, tokenizers and strategies that they name, in this process, to be handed on.
            observers: receive a report of every round.
            clock: says when requests arrive, and when their time is up.
        """


class MemoryBound(Protocol):
    """Keeps an engine of this process within the option ``memory``. It is made before strategies have started a run."""

    def take(self, request: Request, pool: object, joined: bool) -> bool:
        """Take a request for a :class:`specframe.engine.pool.Pool`, and return whether one of its kind was there before.

        ``joined``: its prefill may have to be repeated in the middle, together with others that come.

        Raises:
            PromptError: it does not fit with what the pool has.
        """

    def step(self, pool: object, greedy: bool, rows: int, room: int, joined: bool) -> tuple[Any, int, int]:
        """Return how a pool's requests are decoded, with the tokens of a prompt and of a sequence that there is room for.

        The first is an object with ``rows``, which are decoded together, and ``strategies(use)``, which returns the run's
        :class:`specframe.plugins.compose.Composition` in the form that fits.

        Args:
            pool: has the requests that have not finished.
            greedy: whether none of them has a temperature.
            rows: to decode together at most.
            room: a length that there is to be room for, if it fits.
            joined: whether further requests come, with prompts of any length.

        Raises:
            ModelError: they do not fit.
        """


class RemoteExecutor(Executor, Protocol):
    """An executor that runs models in other processes than the one whose prompts they decode. It offers "remote"."""

    def home(self, recipe: object) -> object:
        """Return the options of the parts of this process, which make requests of prompts; asked before anything is loaded.

        Raises:
            OptionError: an option cannot go to another process.
        """


class LoadingExecutor(Executor, Protocol):
    """An executor that decides how models are loaded; those of others are whole, on the device asked for. It offers "loading"."""

    def device(self, recipe: object) -> torch.device:
        """Return the device of this process's models.

        Raises:
            OptionError: the executor cannot run them, in one sentence. No model has been loaded.
        """

    def load(self, role: str, config: Any, read: Callable[..., PreTrainedModel]) -> PreTrainedModel:
        """Return the model of a role, "target" or "draft"; raise :class:`specframe.errors.ModelError` where it cannot be run.

        ``read`` reads the weights of a named model to this process's device, with its keyword arguments for ``from_pretrained``,
        and returns a model that was given loaded as it is.
        """


class RankedExecutor(Executor, Protocol):
    """An executor whose processes decode the same rows. Each process is a rank, and all make the same calls. It offers "ranks"."""

    rank: int
    """This process's rank. Of all ranks only 0 writes: results, reports, progress, warnings."""

    def barrier(self) -> AbstractContextManager[Callable[[], None]]:
        """Return a context whose block, such as a step of an engine, ends alike on every rank.

        It gives a function that waits until every rank has called it, as the engine does before it takes over a round's tokens.
        Where the block raises on one rank, it raises on all: a lack of memory before that call as ``torch.OutOfMemoryError``,
        anything else as a :class:`specframe.errors.SpecframeError` that names the rank.
        """

    def end(self, status: int, told: str) -> int:
        """Return the exit status of rank 0, with which all ranks end. ``status`` is this rank's own, ``told`` the sentence that
        says why it is not 0: where another rank alone has failed, rank 0 prints it."""


class MappingExecutor(Executor, Protocol):
    """An executor that decodes data sets as a whole, for ``Pipeline.map``, which loads no model. It offers "datasets"."""

    def map(self, recipe: object, dataset: Any, max_new_tokens: int, sampling: object, chat: bool) -> Any:
        """Return a data set of the same library, with the columns of results after those given.

        Args:
            recipe: the options of the run. Its names have been checked.
            dataset: the rows. Each is an entry as of a line of a prompt file.
            max_new_tokens: tokens generated per row unless it stops before.
            sampling: a ``specframe.Sampling`` for all rows; a row's own parameters win.
            chat: whether texts go through the target's chat template.

        Raises:
            OptionError: it cannot decode this data set, or an option of the recipe.
        """


class FilesExecutor(Executor, Protocol):
    """An executor that decodes files of prompts as a whole, for ``specframe run``. It offers "files"."""

    def run_files(self, asked: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[int, str]:
        """Decode the files of a command and show what came of it; return how many prompts failed, and the text of ``--report``.

        ``asked`` has the parameters of ``specframe run`` by name, ``settings`` those of them that results depend on.
        """
