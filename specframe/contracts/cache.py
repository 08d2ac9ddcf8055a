"""Placement of tokens in the cache, and storage of keys and values.

Tensor names carry their shape: B rows, T tokens fed per row, S slots.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, cast

import attrs
import numpy as np
import torch

from specframe.contracts.round import Sequence


@attrs.frozen
class ChunkWindow:
    """What a query sees whose layer attends in chunks of its row's tokens: those of its own chunk."""

    size: int
    """Tokens of a chunk; the first chunk begins at index 0."""


Window = int | ChunkWindow | None
"""What a query sees of the tokens up to itself: as many as a sliding window has, itself included, those of a chunk, or all."""


@attrs.frozen(eq=False)
class Written:
    """What is known on the host of the slots that a forward writes, one number for each row, (B,)."""

    first: np.ndarray
    """The first slot that is written, or one before it."""
    end: np.ndarray
    """One past the last slot that is written, or one after it; padding is not counted."""
    stands: np.ndarray
    """How many first slots hold the row's own tokens once all layers are written, token s in slot s, or 0 if not known."""

    def by_a_draft(self) -> Written:
        """Return the same for writes that are none of a row's own: no slot is known to hold a row's own token."""
        return attrs.evolve(self, stands=np.zeros_like(self.stands))

    def with_rows(self, others: Written) -> Written:
        """Return what is written in these rows, and in others after them."""
        pairs = ((getattr(self, name), getattr(others, name)) for name in ("first", "end", "stands"))
        return Written(*map(np.concatenate, pairs))


@attrs.frozen(eq=False)
class Placement:
    """The places of the tokens about to be fed, and the slots that they may see.

    A token's index is its place among its row's real tokens, which is also its position in every correct alignment.
    """

    positions_BT: torch.Tensor
    """Position ids handed to the model."""
    slots_BT: torch.Tensor
    """The slot of each fed token in its row's cache."""
    index_BT: torch.Tensor
    """The index of each fed token; negative for padding."""
    key_index_BS: torch.Tensor
    """The index of the token in each slot, (B, S) or (1, S); negative where a slot holds none. S is the extent attended to."""
    in_order: bool = False
    """Whether slot s of a row holds the row's token s. In a row with fewer tokens than are fed, padding is fed first."""
    sees_BTT: torch.Tensor | None = None
    """Whether a fed token sees another one (last axis), (B, T, T) or (1, T, T), for a block with branches, or None for a chain."""
    even_of: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    """The ``slots_BT``, ``index_BT`` and ``key_index_BS`` that are known to be :attr:`even`, or None if it is not known."""
    written: Callable[[], Written] | None = None
    """Returns the slots that are written, as the host knows them, or None if they are known on the device alone."""
    attended_BS: torch.Tensor | None = None
    """The slots that a store hands out, (B, N), the written ones among them, or None for the first S. It needs a store of
    "gather"."""
    first_row: int | None = None
    """The store's row that the first row here is, or None for the batch's first. Another than that needs a store of "any-row"."""

    def by_a_draft(self) -> Placement:
        """Return the same for writes that are none of a row's own: no slot is known to hold a row's own token."""
        if (written := self.written) is None:
            return self
        return attrs.evolve(self, written=lambda: written().by_a_draft())

    @property
    def used_B(self) -> torch.Tensor | None:
        """Tokens per row after this forward, int32, or None if slots are not known to be in order."""
        return (self.index_BT[:, -1] + 1).clamp(min=0).int() if self.in_order else None

    @property
    def even(self) -> bool:
        """Whether slot s of every row is known to hold the token of index s, and the T tokens fed to take the last of S slots: what
        they see follows from T and S alone. One made from an even one, with other indices or slots, is not even."""
        if self.even_of is None or self.sees_BTT is not None:
            return False
        slots_BT, index_BT, key_index_BS = self.even_of
        return slots_BT is self.slots_BT and index_BT is self.index_BT and key_index_BS is self.key_index_BS

    def rule(self, window: Window = None) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return what says whether a query attends to a slot, of indices of rows, queries and slots, broadcast against each other.

        A query attends to slots with tokens of an index up to its own; of a tree fed together, only to its ancestors and itself.
        Padding has a negative index and sees the slots of the token of index 0, so that its output is finite.
        """
        index_BT, key_index_BS, sees_BTT = self.index_BT.clamp(min=0), self.key_index_BS, self.sees_BTT
        fed_BS = None if sees_BTT is None else self._fed()

        def visible(row: torch.Tensor, query: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
            key, index = key_index_BS[_in(key_index_BS, row), slot], index_BT[_in(index_BT, row), query]
            seen = _up_to(index, key)
            if window is not None:
                seen = seen & _within(index, key, window)
            if fed_BS is None or sees_BTT is None:
                return seen
            fed = fed_BS[row, slot]
            return seen & ((fed < 0) | sees_BTT[_in(sees_BTT, row), query, fed.clamp(min=0)])

        return visible

    def seen(self, window: Window = None) -> torch.Tensor:
        """Return what :meth:`rule` says of all rows, queries and slots, (B, T, S), or (1, T, S) if all rows are equal."""
        return self.seen_within([window])[window]

    def seen_within(self, windows: Iterable[Window]) -> dict[Window, torch.Tensor]:
        """Return :meth:`seen` for each of several windows."""
        index_BT1, key_B1S = self.index_BT.clamp(min=0)[:, :, None], self.key_index_BS[:, None]
        seen_BTS = _up_to(index_BT1, key_B1S)
        if self.sees_BTT is not None:
            fed_BS = self._fed()
            fed_BTS = fed_BS.clamp(min=0)[:, None].expand(-1, seen_BTS.shape[1], -1)
            ancestor_BTS = self.sees_BTT.expand(len(fed_BS), -1, -1).gather(2, fed_BTS)
            seen_BTS = seen_BTS & ((fed_BS < 0)[:, None] | ancestor_BTS)
        return {one: seen_BTS if one is None else seen_BTS & _within(index_BT1, key_B1S, one) for one in windows}

    def _fed(self) -> torch.Tensor:
        """Return the index of the fed token for each attended slot, (B, S); -1: none."""
        rows, width = self.slots_BT.shape
        extent = self.key_index_BS.shape[1]
        fed_BS = self.slots_BT.new_full((rows, extent + 1), -1)
        places_BT = torch.arange(width, device=fed_BS.device).expand(rows, -1)
        return fed_BS.scatter_(1, self.slots_BT.clamp(max=extent), places_BT)[:, :extent]


def _up_to(index: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return whether slots hold tokens of an index up to that of queries."""
    return (key <= index) & (key >= 0)


def last_hidden(index: torch.Tensor, window: int | ChunkWindow) -> torch.Tensor:
    """Return the index up to which a window hides tokens from queries of an index; negative where it hides none."""
    return index - index % window.size - 1 if isinstance(window, ChunkWindow) else index - window


def _within(index: torch.Tensor, key: torch.Tensor, window: int | ChunkWindow) -> torch.Tensor:
    """Return whether tokens lie in the sliding window or the chunk of queries, a query's own token included."""
    return key > last_hidden(index, window)


def _in(values_BN: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Return the row index into ``values_BN``: 0 if it has one row for all."""
    return 0 * row if len(values_BN) == 1 else row


@attrs.frozen
class KVShape:
    """Shape of one layer's keys and values for one token."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    device: torch.device | None = None
    """Where the layer is, if that is not the device that the store is opened on: a model may be spread over several."""


class DenseView(NamedTuple):
    """The keys and values of the slots attended to, of every row of the batch: (B, H, S, D) each.

    A tuple, since every layer of every forward makes one.
    """

    keys: torch.Tensor
    values: torch.Tensor


@attrs.frozen(eq=False)
class PagedView:
    """The keys and values of a layer in pages that rows share, and each row's pages in order."""

    keys: torch.Tensor
    """All pages, (P, page, H, D)."""
    values: torch.Tensor
    table_BN: torch.Tensor
    """The numbers of the pages that hold a row's slots: slot s is place ``s % page`` of page ``table_BN[row, s // page]``."""
    page: int
    """Slots of a page."""


KVView = DenseView | PagedView
"""The keys and values that a forward attends to, as a store hands them out."""


class KVStore(Protocol):
    """The keys and values of one model, for every live sequence."""

    @property
    def rows(self) -> int:
        """Number of sequences that the store has room for; in stores without fixed rows, the batch's sequences."""

    @property
    def slots(self) -> int | None:
        """Slots per row of the store's views, if their memory never moves, so that CUDA graphs can record forwards; else None."""

    @property
    def first(self) -> int:
        """The batch's first row among all rows, or 0 in stores without fixed rows."""

    def arrange(self, sequences: list[Sequence]) -> None:
        """Make ``sequences`` the rows of the forwards to come, in this order."""

    def expect(self, placement: Placement) -> None:
        """Announce the next forward's placement. A store that grows drops all columns from the first written one on."""

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> KVView:
        """Write (B, H, T, D) keys and values into the expected slots, and return a view of the attended slots, in their order."""

    def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """Copy slot ``sources_BT[i, t]`` of row i to slot ``targets_BT[i, t]``, all at once. Without targets these are the first T
        slots, and a store that grows drops all others."""

    def reserve(self, sequence: Sequence, tokens: int) -> int | None:
        """Make room for a sequence that begins with ``tokens`` tokens and has up to ``sequence.limit``, when it is admitted.

        A fork is admitted before its parent's prefill, and begins with the parent's tokens at its first ``arrange``.

        Returns:
            The number of its first tokens that are cached already, as another, ``ready`` sequence's: they need not be fed. The last
            token of a prompt may be missing. Or None if there is no room until another is released; the sequence waits.
        """

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence, once for each that room was made for. What is cached of its prompt may stay, for later ones."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""


class PooledStore(KVStore, Protocol):
    """A store whose rows share its memory, and which runs of any size use. Its backend offers "pooled"."""

    def widen(self, rows: int, capacity: int) -> None:
        """Serve a run of ``rows`` sequences of up to ``capacity`` slots. No sequence is live; the cache of earlier ones stays."""


class BoundedStore(KVStore, Protocol):
    """A store that holds as much as its sequences need. Its backend offers "bounded"."""

    def most_bytes(self, rows: int, capacity: int) -> tuple[int, int]:
        """Return the most bytes that it holds of ``rows`` rows of ``capacity`` slots, and those that it also takes for a moment."""


class PrefixStore(KVStore, Protocol):
    """A store that keeps the first slots of rows for others that begin with the same tokens. Its backend offers "prefix"."""

    ahead: int
    """How many tokens after a slot's own one its keys depend on, 0 until it is set: two rows have the same first s slots if their
    first s + ``ahead`` tokens are equal."""
    apart: Callable[[Sequence], bool] | None
    """Tells two kinds of rows, which share nothing, or None, until it is set, for rows of one kind."""


class DirectStore(KVStore, Protocol):
    """A store that hands out its memory, to which code of a forward writes itself. No class of another store has ``places``."""

    def places(self) -> torch.Tensor:
        """Return the places of the tokens that the forward feeds, (B, T), in the memory of a layer."""

    def memory(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and the values of a layer, (places, H, D)."""

    def view(self, layer: int) -> DenseView:
        """Return all slots attended to of a layer that has been written."""


class KVBackend(Protocol):
    """Decides how keys and values are stored."""

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()
    """What its stores do: "scatter" (write any slot), "append" (the next columns), "move", "grow" (beyond the capacity), "gather"
    (hand out ``Placement.attended_BS`` alone), "any-row" (begin at ``Placement.first_row``); their views, "dense" or "paged"; and
    larger protocols: "pooled", "prefix" and "bounded" of stores, "states", "rounded" and "drafts" of backends."""

    @abstractmethod
    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> KVStore:
        """Return a store for ``rows`` sequences of up to ``capacity`` slots, and one after them for padding."""


class RoundingBackend(KVBackend, Protocol):
    """A KV backend that offers "rounded": forwards read other keys and values than are written, so that no output is exact."""

    def rounded(self, states: torch.Tensor) -> torch.Tensor:
        """Return keys or values (B, H, T, D) as forwards read them, their own included. It depends on each head's numbers alone."""


Rounding = Callable[[torch.Tensor], torch.Tensor]
"""Returns keys or values (B, H, T, D) as forwards read them."""


def rounding(kv: KVBackend) -> Rounding | None:
    """Return what a KV backend makes of keys and values, for whoever decodes with a cache of its own, or None if nothing."""
    return cast(RoundingBackend, kv).rounded if "rounded" in kv.offers else None


class DraftsBackend(KVBackend, Protocol):
    """A KV backend that offers "drafts": the caches of drafts have another one."""

    def of_drafts(self, own: KVBackend) -> KVBackend:
        """Return the backend of a draft's cache, where the drafter asks for ``own``: always the same one for the same."""
