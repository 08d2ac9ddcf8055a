"""What this process and its workers send each other, and how a request goes from one to the other.

Messages are pickled. Arrays have one entry per row.
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch

from specframe.contracts.requests import FinishReason, Request, SequenceMetrics
from specframe.contracts.round import Logprobs
from specframe.errors import OptionError, SpecframeError, literal, sentence
from specframe.text.stopping import Criteria

if TYPE_CHECKING:
    from specframe.plugins.recipe import Recipe


KEPT = 256
"""Constraints that a worker knows again, at most."""


@attrs.frozen
class Open:
    """Open an engine."""

    run: int
    """Number of the run. Every message that comes back has it."""
    recipe: bytes | None
    """The pickled recipe, or None for the one that the worker has made its models and strategies of."""
    batch_size: int
    seed: int
    kind: str
    """Kind of devices that loaded models may be on; the worker has to know of it before it is sent tensors."""


@attrs.frozen
class Add:
    """Decode requests."""

    requests: list[tuple[int, bytes]]
    """Each as its ticket and what :func:`packed` makes of it."""
    room: int
    """Length of the longest sequence to come, as far as is known."""


@attrs.frozen
class Abort:
    """Forget a request."""

    ticket: int


@attrs.frozen
class Close:
    """Forget all requests."""


@attrs.frozen
class Ended:
    """The end of one sequence."""

    ticket: int
    reason: FinishReason
    token_ids: list[int]
    metrics: SequenceMetrics
    logprobs: Logprobs | None
    error: str | None = None
    """Why it could not be decoded, where more is known than its reason says."""


@attrs.frozen(eq=False)
class Round:
    """A worker's round; see :class:`specframe.contracts.reports.Progress`."""

    tickets: list[int]
    prefill: bool
    lengths: np.ndarray
    depth: int
    drafted: np.ndarray
    accepted: np.ndarray
    tokens: list[list[int]]
    ended: list[Ended]
    forwards: list[tuple[str, int, int]]
    """Model, rows and tokens per row of each forward pass since the round before."""
    fed: list[tuple[str, int, int]]
    """Model, real tokens and tokens computed in these forwards."""
    stages: dict[str, float]
    """Seconds of each stage since the run began; empty where no sequence has ended."""
    peak_kv_bytes: int
    state_bytes: int


@attrs.frozen
class Ready:
    """The worker has its models."""


@attrs.frozen
class Failed:
    """A request cannot be decoded, or a round raised an error; the requests are forgotten, all that the engine had."""

    tickets: list[int]
    error: str


@attrs.frozen
class Warned:
    """The text of a :class:`specframe.errors.SpecframeWarning`."""

    text: str


@attrs.frozen(eq=False)
class Broken:
    """A run cannot go on, through no fault of a request."""

    kind: type[SpecframeError]
    text: str
    facts: dict[str, Any]

    @classmethod
    def by(cls, error: SpecframeError) -> Broken:
        """Return the message about an error."""
        return cls(type(error), str(error), vars(error))

    @property
    def error(self) -> SpecframeError:
        """The error, made again without its constructor, whose arguments are not known."""
        made = self.kind.__new__(self.kind, self.text)
        vars(made).update(self.facts)
        return made


def packed_recipe(recipe: Recipe) -> bytes:
    """Return a recipe for a worker, without observers, which are called in this process.

    Raises:
        OptionError: an option cannot be pickled.
    """
    recipe = attrs.evolve(recipe, observers=())
    try:
        return pickle.dumps(recipe)
    except Exception:
        for field in attrs.fields(type(recipe)):
            _require_picklable(field.name, getattr(recipe, field.name))
        raise


def _require_picklable(name: str, given: Any) -> None:
    try:
        pickle.dumps(given)
    except Exception as error:  # an object's own methods may raise anything
        raise OptionError(
            f"{name}: expected a name, or an object that can be pickled for worker processes, "
            f"got {literal(given)}: {sentence(error)}"
        ) from error


class _Packer(pickle.Pickler):
    """Leaves out the tokenizer, which a worker has, and notes tensors by their values on the host."""

    def __init__(self, file: io.BytesIO, tokenizer: Any) -> None:
        super().__init__(file)
        self._tokenizer = tokenizer

    def persistent_id(self, one: Any) -> Any:
        """Return the placeholder of an object, or None for the object itself."""
        if one is self._tokenizer and one is not None:
            return "tokenizer", None
        return ("tensor", pickle.dumps(one.detach().cpu())) if isinstance(one, torch.Tensor) else None


class _Unpacker(pickle.Unpickler):
    """Puts the worker's tokenizer in its place, and tensors on the worker's device."""

    def __init__(self, file: io.BytesIO, tokenizer: Any, device: torch.device) -> None:
        super().__init__(file)
        self._tokenizer, self._device = tokenizer, device

    def persistent_load(self, stand_in: Any) -> Any:
        """Return the object of a placeholder."""
        kind, values = stand_in
        return self._tokenizer if kind == "tokenizer" else pickle.loads(values).to(self._device)


def packed(request: Request, tokenizer: Any) -> bytes:
    """Return a request as it goes to a worker; its objects may raise anything that pickling raises."""
    file = io.BytesIO()
    _Packer(file, tokenizer).dump(attrs.evolve(request, arrival=0.0))
    return file.getvalue()


class Unpacking:
    """Makes requests of what comes.

    Equal constraints are made one object, as they were: rows that share one are asked about together.

    Args:
        tokenizer: the worker's.
        device: the worker's.
    """

    def __init__(self, tokenizer: Any, device: torch.device) -> None:
        self._tokenizer, self._device = tokenizer, device
        self._constraints: dict[bytes, Any] = {}

    def request(self, data: bytes) -> Request:
        """Return a request."""
        made: Request = _Unpacker(io.BytesIO(data), self._tokenizer, self._device).load()
        for check in made.stop_checks:
            if isinstance(check, Criteria):
                check.device = self._device
        if made.constraint is None or isinstance(made.constraint, str):
            return made
        if len(self._constraints) >= KEPT:
            self._constraints.clear()
        known = self._constraints.setdefault(pickle.dumps(made.constraint), made.constraint)
        return attrs.evolve(made, constraint=known)
