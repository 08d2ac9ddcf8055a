"""A KV store as a transformers cache: it writes new keys and values and returns the attended ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from transformers import Cache

from specframe.contracts.cache import DenseView, KVStore, KVView, PagedView
from specframe.model.padding_free import PaddingFree

NO_LENGTHS: Mapping[int, torch.Tensor] = MappingProxyType({})


def of_indexer(layer: int) -> int:
    """Return the number by which a layer's indexer is told apart from layers: its keys are stored as a layer's without values."""
    return -1 - layer


class StoreCache(Cache):
    """Hands a model's keys and values to a store, and the store's view to attention.

    Args:
        store: the store, which expects a forward.
        extent: slots attended to.
        contiguous: copy what is attended to into tensors (B, H, S, D) without strides, which some models take for granted.
        padding_free: the places of tokens that the model has in one row, (1, N), or None if it has a rectangle.
        numbers: the store's number of each layer that attends, by the model's, and of indexers, or None if they are the same.
        lengths: what layers are told as its length that ask for it by their number.
        pages: whether attention reads pages; where it does not, a store with pages has them gathered into plain tensors.
    """

    def __init__(
        self,
        store: KVStore,
        extent: int,
        contiguous: bool = False,
        padding_free: PaddingFree | None = None,
        numbers: Mapping[int, int] | None = None,
        lengths: Mapping[int, torch.Tensor] = NO_LENGTHS,
        pages: bool = False,
    ) -> None:
        super().__init__(layers=[])
        self._numbers, self._lengths, self._pages = numbers, lengths, pages
        self._store, self._extent, self._contiguous, self._padding_free = store, extent, contiguous, padding_free
        self.paged: dict[int, PagedView] = {}
        """Views that attention reads instead of dense keys and values, by layer, for a store with pages."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (B, H, T, D) keys and values; return those of all slots attended to, or the new ones where they are in pages."""
        if self._padding_free is not None:
            key_states, value_states = self._padding_free.heads(key_states), self._padding_free.heads(value_states)
        number = layer_idx if self._numbers is None else self._numbers[layer_idx]
        view = self._store.write(number, key_states, value_states)
        if isinstance(view, PagedView):
            if self._pages:
                self.paged[layer_idx] = view
                return key_states, value_states
            view = gather_slots(view, self._extent)
        if self._contiguous:
            return view.keys.contiguous(), view.values.contiguous()
        return view.keys, view.values

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """Write (B, T, D) keys by which a layer chooses what it attends to; return those of all slots attended to, (B, S, D)."""
        keys = indexer_key_states[:, None]
        number = of_indexer(layer_idx) if self._numbers is None else self._numbers[of_indexer(layer_idx)]
        view = self._store.write(number, keys, keys[..., :0])
        return gather_slots(view, self._extent).keys[:, 0]

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Return the number of slots attended to, from which no position comes, or what the layer is told of its tokens."""
        return self._lengths.get(layer_idx, self._extent)


class Unwritten(Cache):
    """Hands a layer its own keys and values back: the operator that attends takes them to the store."""

    def __init__(self, extent: int) -> None:
        super().__init__(layers=[])
        self._extent = extent

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the arguments unchanged."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of slots attended to."""
        return self._extent


def gather_slots(view: KVView, slots: int) -> DenseView:
    """Return the keys and values of the first ``slots`` slots of every row as plain tensors (B, H, S, D); pages are copied."""
    if isinstance(view, DenseView):
        return DenseView(view.keys[:, :, :slots], view.values[:, :, :slots])
    slot_S = torch.arange(slots, device=view.table_BN.device)
    pages_BS, places_S = view.table_BN[:, slot_S // view.page], slot_S % view.page
    return DenseView(view.keys[pages_BS, places_S].transpose(1, 2), view.values[pages_BS, places_S].transpose(1, 2))


def in_pages(view: DenseView, page: int) -> PagedView:
    """Return a copy of plain tensors in pages of ``page`` slots, the last of each row filled with zeros."""
    rows, _, slots, _ = view.keys.shape
    count = -(-slots // page)
    keys, values = (
        torch.nn.functional.pad(part.transpose(1, 2), (0, 0, 0, 0, 0, count * page - slots))
        .unflatten(1, (count, page))
        .flatten(0, 1)
        for part in (view.keys, view.values)
    )
    return PagedView(keys, values, torch.arange(rows * count, device=keys.device).view(rows, count), page)
