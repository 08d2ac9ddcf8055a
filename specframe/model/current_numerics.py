"""The numerics that are active: forwards ask them where the order of tokens, or the way of a state, matters to the last bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import Placement
from specframe.contracts.numerics import ForwardNumerics
from specframe.devices.kinds import NO_CONTEXT

_ACTIVE: ContextVar[ForwardNumerics | None] = ContextVar("specframe.numerics", default=None)


@contextlib.contextmanager
def active(numerics: ForwardNumerics) -> Iterator[None]:
    """Have forwards inside the block ask these numerics."""
    token = _ACTIVE.set(numerics)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def are_active() -> bool:
    """Return whether there are numerics that forwards ask: states then take in one token after the other."""
    return _ACTIVE.get() is not None


def attending(placement: Placement) -> contextlib.AbstractContextManager[None]:
    """Return the context of a forward whose tokens attend by a placement."""
    found = _ACTIVE.get()
    return NO_CONTEXT if found is None else found.attending(placement)


def attending_rows(rows: slice, width: int) -> contextlib.AbstractContextManager[None]:
    """Return the context in which some rows of a forward attend by themselves, with the first ``width`` tokens of each."""
    found = _ACTIVE.get()
    return NO_CONTEXT if found is None else found.attending_rows(rows, width)


def fed_alone(model: PreTrainedModel) -> Callable[[torch.Tensor], contextlib.AbstractContextManager[None]]:
    """Return what makes the context of each forward, of tokens (B, T), of a model that is fed outside of a run."""
    found = _ACTIVE.get()
    return (lambda ids_BT: NO_CONTEXT) if found is None else found.fed_alone(model)
