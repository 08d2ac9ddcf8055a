"""Keys in the order of their tokens: attention adds up the same blocks of keys wherever an alignment has put them.

A block of keys begins at a multiple of its length. A row that is padded on the left, or a node of a tree, has its tokens in
other slots than a row decoded alone, so its blocks would begin at other tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch

from specframe.contracts.cache import Placement
from specframe.devices.kinds import NO_CONTEXT

LAST = 2**62
"""An order after that of any token."""

_SLOTS: ContextVar[torch.Tensor | None] = ContextVar("specframe.bitwise.slots", default=None)


def ordered_attention(placement: Placement) -> contextlib.AbstractContextManager[None]:
    """Have attention inside the block, a forward, take the slots of its cache by the order of their tokens."""
    return _ordered(slots_by_index(placement))


def of_rows(rows: slice, width: int) -> contextlib.AbstractContextManager[None]:
    """Have attention inside the block take the slots of some rows, and of the first ``width`` tokens that each is fed."""
    found = _SLOTS.get()
    return (
        NO_CONTEXT
        if found is None or len(found) == 1
        else _ordered(found[rows] if found.ndim < 3 else found[rows, :width])
    )


@contextlib.contextmanager
def _ordered(slots: torch.Tensor | None) -> Iterator[None]:
    token = _SLOTS.set(slots)
    try:
        yield
    finally:
        _SLOTS.reset(token)


def current_slots(slots: int) -> torch.Tensor | None:
    """Return the slots of the forward under way by the order of their tokens, or None if they are in order or differ in number."""
    found = _SLOTS.get()
    return found if found is not None and found.shape[-1] == slots else None


def slots_by_index(placement: Placement) -> torch.Tensor | None:
    """Return all slots by the order of their tokens, those without a token last, or None if slot s holds the token of index s.

    Returns:
        (B, S), or (1, S) if all rows are equal. For a tree (B, T, S): each fed token has an order of its own, in which the tokens
        before it and those of its path come first.
    """
    key_index_BS = placement.key_index_BS
    if placement.sees_BTT is not None:
        key_index_BTS = key_index_BS[:, None].where(placement.seen(), LAST)
        return key_index_BTS.argsort(dim=-1, stable=True)
    if placement.in_order:
        return None
    return key_index_BS.where(key_index_BS >= 0, LAST).argsort(dim=-1, stable=True)
