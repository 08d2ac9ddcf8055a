"""What transformers calls in a forward: our attention function, over a cache of grouped heads, and a KV store as its cache.

Attention has three ways, one result. *Masked* SDPA runs anywhere: the query heads that share a key head become further queries
of that head, so keys and values are never copied, where transformers' own ``sdpa`` copies them once per query head whenever a
mask is given. The other two take no mask tensor: variable-length attention, and FlexAttention, are backends of plugins.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, cast

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from specframe.contracts.attention import Attend
from specframe.contracts.cache import DenseView, DirectStore, KVStore, KVView, PagedView, Window
from specframe.errors import ModelError
from specframe.model.attention.masks import aligned
from specframe.model.padding_free import PaddingFree
from specframe.model.twin import CURRENT, NAME


class Watched:
    """What takes a mask's place, and the windows that layers ask it for, one after the other."""

    def __init__(self, attends: Attend) -> None:
        self._attends = attends
        self.windows: list[Window] = []

    def attend(self, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
        """Attend, after noting the window."""
        self.windows.append(window)
        return self._attends.attend(query, view, scaling, window)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend (B, H, T, D) queries to (B, G, S, D) keys and values, G dividing H, under an additive mask or without.

    In a thread that runs no forward of ours it is ``sdpa``: another thread may call the model as it is. The mask is one for all
    heads, (B, 1, T, S), or has one for each, (B, H, T, S). Where a layer's indexer has chosen slots, ``indices`` (B, T, K), a query
    sees those alone that the mask shows and that are among them. In a forward without padding the queries are (1, H, N, D), of all
    rows after each other.

    Returns:
        (B, T, H, D), or (1, N, H, D), and None, as transformers' attention functions do.

    Raises:
        ModelError: the scores have a bias, or slots are chosen, and there is no mask to go with it.
    """
    state = CURRENT.get()
    if state.attention is not None:
        return state.attention(module, query, key, value, attention_mask, scaling, **options), None
    bias = options.get("position_bias")
    if (chosen := options.get("indices")) is not None:
        attention_mask = masked_but(attention_mask, chosen)
    if (padding_free := state.padding_free) is not None:
        query = padding_free.heads(query)
    elif (
        bias is not None and state.attends is None and attention_mask is not None and attention_mask.is_floating_point()
    ):
        attention_mask, bias = biased(attention_mask, bias), None
    if state.attends is not None:
        if bias is not None:
            raise ModelError(
                "the model adds a bias to its scores, for which there has to be a mask: ask for attention 'masked'"
            )
        paged = state.cache.paged.get(module.layer_idx) if state.cache is not None and state.cache.paged else None
        view = paged or DenseView(key, value)
        window = options.get("sliding_window")
        if state.chunks:
            window = state.chunks.get(getattr(module, "layer_idx", -1), window)
        output = state.attends.attend(query, view, scaling, window)
    elif attention_mask is None or bias is not None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    elif padding_free is not None and padding_free.groups is not None:
        output = padding_free.attended(
            functools.partial(masked_attention, scaling=scaling), query, key, value, attention_mask
        )
    else:
        output = masked_attention(query, key, value, attention_mask, scaling, state.repeated)
    return (output if padding_free is None else padding_free.row(output)), None


def biased(mask_BHTS: torch.Tensor, bias_BHTS: torch.Tensor) -> torch.Tensor:
    """Return an additive mask with a bias of scores; what is hidden has the least number."""
    return (mask_BHTS + bias_BHTS).clamp_(min=torch.finfo(mask_BHTS.dtype).min)


def masked_but(mask_B1TS: torch.Tensor | None, chosen_BTK: torch.Tensor) -> torch.Tensor:
    """Return a mask, additive or of bools, that hides all slots but those chosen, too.

    Raises:
        ModelError: there is no mask.
    """
    if mask_B1TS is None or CURRENT.get().attends is not None:
        raise ModelError(
            "the model chooses what it attends to, for which there has to be a mask: ask for attention 'masked'"
        )
    rows, width, _ = chosen_BTK.shape
    hidden_BTS = chosen_BTK.new_ones(rows, width, mask_B1TS.shape[-1], dtype=torch.bool)
    hidden_BTS = hidden_BTS.scatter(2, chosen_BTK.long(), False)
    least = False if mask_B1TS.dtype == torch.bool else torch.finfo(mask_B1TS.dtype).min
    return mask_B1TS.masked_fill(hidden_BTS[:, None], least)


def masked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None,
    repeated: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return what (B, H, T, D) queries attend to under an additive mask, (B, T, H, D).

    ``repeated`` is that of :func:`for_heads`.
    """
    rows, heads, length, size = query.shape
    shared = heads // key.shape[1]
    if shared > 1:
        query = query.reshape(rows, key.shape[1], shared * length, size)
        if attention_mask.shape[1] > 1:
            attention_mask = attention_mask.reshape(rows, key.shape[1], shared * length, -1)
        elif length > 1:  # a single query's mask row holds for all that share the head
            attention_mask = for_heads(attention_mask, shared, repeated)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(rows, heads, length, value.shape[-1]).transpose(1, 2).contiguous()


def for_heads(mask: torch.Tensor, shared: int, repeated: list[torch.Tensor] | None) -> torch.Tensor:
    """Return a mask (B, 1, T, S) for queries of the heads that share a key head, (B, 1, shared * T, S).

    Args:
        mask: of a layer.
        shared: the number of these heads.
        repeated: the mask of the layer before, and what was returned for it, which is used again for the same mask. Both become
            this one's. It is None outside of our forwards, where nothing is kept.
    """
    if repeated and repeated[0] is mask and repeated[1].shape[2] == shared * mask.shape[2]:
        return repeated[1]
    made = aligned(mask.repeat(1, 1, shared, 1))
    if repeated is not None:
        repeated[:] = mask, made
    return made


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


NO_LENGTHS: Mapping[int, torch.Tensor] = MappingProxyType({})


def of_indexer(layer: int) -> int:
    """Return the number that distinguishes a layer's indexer from layers: its keys are stored as a layer's without values."""
    return -1 - layer


class StoreCache(Cache):
    """Hands a model's keys and values to a store, and the store's view to attention.

    Args:
        store: the store, which expects a forward.
        extent: slots attended to.
        contiguous: copy what is attended to into tensors (B, H, S, D) without strides, which some models take for granted.
        padding_free: the places of tokens that the model has in one row, (1, N), or None if it has a rectangle.
        numbers: the store's number of each layer that attends, by the model's, and of indexers, or None if they are the same.
        lengths: the length for layers that ask for it by their number.
        pages: whether attention reads pages. Otherwise the pages of a store are gathered into plain tensors.
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
        number = self._number(layer_idx)
        if value_states.dtype != key_states.dtype:  # values are as a linear layer under autocast left them
            value_states = value_states.to(key_states.dtype)
        view = self._store.write(number, key_states, value_states)
        if isinstance(view, PagedView):
            if self._pages:
                self.paged[layer_idx] = view
                return key_states, value_states
            view = gather_slots(view, self._extent)
        if self._contiguous:
            return view.keys.contiguous(), view.values.contiguous()
        return view.keys, view.values

    def _number(self, layer: int) -> int:
        """Return the store's number of a layer or an indexer."""
        return layer if self._numbers is None else self._numbers[layer]

    def memory(self, layers: Iterable[int]) -> list[torch.Tensor]:
        """Return the places of the tokens fed in the memory of the store, and the keys and values there of each of these layers.

        The caller writes to them, where :meth:`update` would have. The store is a :class:`specframe.contracts.cache.DirectStore`.
        """
        store = cast(DirectStore, self._store)
        places_BT = store.places() if self._padding_free is None else self._padding_free.row(store.places())
        return [places_BT, *(part for layer in layers for part in store.memory(self._number(layer)))]

    def written(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what :meth:`update` does for a layer whose memory was written."""
        keys, values = cast(DirectStore, self._store).view(self._number(layer))
        return (keys.contiguous(), values.contiguous()) if self._contiguous else (keys, values)

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """Write (B, T, D) keys by which a layer chooses what it attends to; return those of all slots attended to, (B, S, D)."""
        keys = indexer_key_states[:, None]
        view = self._store.write(self._number(of_indexer(layer_idx)), keys, keys[..., :0])
        return gather_slots(view, self._extent).keys[:, 0]

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Return the number of slots attended to, from which no position comes, or the layer's own position inputs."""
        return self._lengths.get(layer_idx, self._extent)


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
