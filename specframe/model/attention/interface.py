"""Attention over a cache of grouped heads, registered with transformers' attention interface.

Three ways, one result. *Masked* SDPA runs anywhere: the query heads that share a key head become further queries of that head, so
keys and values are never copied, where transformers' own ``sdpa`` copies them once per query head whenever a mask is given. The
other two take no mask tensor, and take its place: *packed* attention (:mod:`specframe.model.attention.varlen`) and *flex*
attention (:mod:`specframe.model.attention.flex`).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from specframe.contracts.attention import Attend
from specframe.contracts.cache import DenseView, KVView, Window
from specframe.errors import ModelError
from specframe.model.attention.masks import aligned
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

    While a layer is compiled it is an operator. In a thread that runs no forward of ours it is ``sdpa``: another thread may call
    the model as it is. The mask is one for all heads, (B, 1, T, S), or has one for each, (B, H, T, S). Where a layer's indexer has
    chosen slots, ``indices`` (B, T, K), a query sees those alone that the mask shows and that are among them. In a forward without
    padding the queries are (1, H, N, D), those of all rows after each other.

    Returns:
        (B, T, H, D), or (1, N, H, D), and None, as transformers' attention functions do.

    Raises:
        ModelError: the scores have a bias, or slots are chosen, and there is no mask to go with it.
    """
    if torch.compiler.is_dynamo_compiling():  # an operator that is not looked into
        window = options.get("sliding_window")
        return torch.ops.specframe.attend(query, key, value, attention_mask, module.layer_idx, scaling, window), None
    biased = options.get("position_bias") is not None
    if (chosen := options.get("indices")) is not None:
        attention_mask = masked_but(attention_mask, chosen)
    state = CURRENT.get()
    if (padding_free := state.padding_free) is not None:
        query = padding_free.heads(query)
    elif biased and state.attends is None and attention_mask is not None and attention_mask.is_floating_point():
        attention_mask, biased = with_bias(attention_mask, options["position_bias"]), False
    if state.attends is not None:
        if biased:
            raise ModelError(
                "the model adds a bias to its scores, for which there has to be a mask: ask for attention 'masked'"
            )
        paged = state.cache.paged.get(module.layer_idx) if state.cache is not None and state.cache.paged else None
        view = paged or DenseView(key, value)
        window = options.get("sliding_window")
        if state.chunks:
            window = state.chunks.get(getattr(module, "layer_idx", -1), window)
        output = state.attends.attend(query, view, scaling, window)
    elif attention_mask is None or biased:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    elif padding_free is not None and padding_free.groups is not None:
        output = padding_free.attended(
            functools.partial(masked_attention, scaling=scaling), query, key, value, attention_mask
        )
    else:
        output = masked_attention(query, key, value, attention_mask, scaling, state.repeated)
    return (output if padding_free is None else padding_free.row(output)), None


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


def with_bias(mask_B1TS: torch.Tensor, bias_BHTS: torch.Tensor) -> torch.Tensor:
    """Return an additive mask with a bias of the scores, (B, H, T, S); what is hidden stays finite."""
    return (mask_B1TS + bias_BHTS).clamp_(min=torch.finfo(mask_B1TS.dtype).min)


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
            this one's. None: outside of our forwards nothing is kept.
    """
    if repeated and repeated[0] is mask and repeated[1].shape[2] == shared * mask.shape[2]:
        return repeated[1]
    made = aligned(mask.repeat(1, 1, shared, 1))
    if repeated is not None:
        repeated[:] = mask, made
    return made


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
