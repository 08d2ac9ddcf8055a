"""Keys and values: where tokens are placed, and what stores them.

Tensor names carry their shape: B rows, T tokens fed per row, S slots.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import numpy as np
import torch

from specframe.contracts.round import Sequence


@attrs.frozen(eq=False)
class Placement:
    """Where the tokens about to be fed go, and what they may see.

    A query attends to a slot when the slot's order is at least 0 and at most the query's own. Order is a token's place
    among its row's real tokens, which is also its position in every correct alignment.
    """

    positions_BT: torch.Tensor
    """Position ids handed to the model."""
    slots_BT: torch.Tensor
    """The slot of each fed token in its row's cache."""
    order_BT: torch.Tensor
    """Place of each fed token among its row's tokens; negative for padding."""
    key_order_BS: torch.Tensor
    """Place of the token in each slot, (B, S) or (1, S); negative where a slot holds none. S is the extent attended to."""
    used_B: torch.Tensor | None = None
    """Where every slot's place is its number: tokens per row after this forward, int32.

    In a row with fewer than are fed, the first of those are padding.
    """


@attrs.frozen
class KVShape:
    """Shape of one layer's keys and values for one token."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype


class KVStore(Protocol):
    """The keys and values of one model, for every live sequence."""

    def arrange(self, sequences: list[Sequence]) -> None:
        """Make ``sequences`` the rows of the forwards to come, in this order."""

    def expect(self, placement: Placement) -> None:
        """Announce where the keys and values of the forward about to run go, and the slots it attends to."""

    def shift(self, offsets: np.ndarray, width: int) -> None:
        """Move row i of the batch right by ``offsets[i]`` slots (left when negative) and keep ``width`` slots."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""


class KVBackend(Protocol):
    """Decides how keys and values are stored."""

    provides: frozenset[str]
    """What its stores can do: of "scatter", "append", "shift", "grow" (take more columns than the capacity)."""

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> KVStore:
        """Return a store for ``rows`` sequences of up to ``capacity`` slots; it is also a ``transformers.Cache``."""
