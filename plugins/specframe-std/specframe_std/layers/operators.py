"""The calls between pieces: a layer's cache, its attention. In a trace each is one operator of torch, which nothing looks into.

Tensor names carry their shape: B rows, T tokens fed per row, S slots attended to, H heads, G key heads, D entries of a head.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch.fx.node import has_side_effect
from torch.overrides import TorchFunctionMode
from transformers import Cache

from specframe.errors import ModelError
from specframe.model.attention.interface import attend, biased
from specframe.model.twin import CURRENT

ROWS, WIDTH, SLOTS, KEPT = 3, 5, 11, 2
"""The sizes of the tensors that are traced. All differ, since torch takes equal ones for the same size; none is 1, for which
code would be written that holds for 1 alone. What is written serves rows or tokens of one as well, see
:func:`specframe_std.layers.trace_check.require_agreement`."""

UPDATE_NAME, ATTEND_NAME = "specframe::update", "specframe::attend"

torch.library.define(UPDATE_NAME, "(Tensor key, Tensor value, Tensor key_index, int layer) -> (Tensor, Tensor)")
torch.library.define(
    ATTEND_NAME,
    "(Tensor query, Tensor key, Tensor value, Tensor mask, int? layer, float? scaling, int? window) -> Tensor",
)


@torch.library.register_fake(UPDATE_NAME)
def _held(
    key: torch.Tensor, value: torch.Tensor, key_index: torch.Tensor, _layer: int
) -> tuple[torch.Tensor, torch.Tensor]:
    found = [one.new_empty(*one.shape[:2], key_index.shape[1], one.shape[3], dtype=key.dtype) for one in (key, value)]
    return found[0], found[1]


@torch.library.register_fake(ATTEND_NAME)
def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> torch.Tensor:
    rows, heads, length, _size = query.shape
    return query.new_empty(rows, length, heads, value.shape[-1])


@torch.library.custom_op("specframe::grouped_mm", mutates_args=())
def grouped_mm(tokens: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the products of tokens with the weights of their experts: torch's own operator has shapes in bfloat16 alone."""
    return torch.nn.functional.grouped_mm(tokens, weights, offs=ends)


@grouped_mm.register_fake
def _products(tokens: torch.Tensor, weights: torch.Tensor, _ends: torch.Tensor) -> torch.Tensor:
    return tokens.new_empty(tokens.shape[0], weights.shape[2])


class ExpertsTraced(TorchFunctionMode):
    """Inside the block, experts' products are an operator that can be traced in every precision."""

    def __torch_function__(self, called: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        """Call torch's function, or ours."""
        if called is torch._grouped_mm and given[0].dtype != torch.bfloat16:
            return grouped_mm(*given[:2], named["offs"])
        return called(*given, **(named or {}))


UPDATE, ATTEND = torch.ops.specframe.update.default, torch.ops.specframe.attend.default
has_side_effect(UPDATE)


class TracedCache(Cache):
    """Takes a cache's place in a trace.

    Args:
        key_index_BS: the index of the token in each slot.
        lengths: the length for layers that ask for it by their number, see :class:`specframe.model.attention.interface.StoreCache`.
    """

    def __init__(self, key_index_BS: torch.Tensor, lengths: Mapping[int, torch.Tensor]) -> None:
        super().__init__(layers=[])
        self._key_index_BS, self._lengths = key_index_BS, lengths

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of all slots, as an operator."""
        found: tuple[torch.Tensor, torch.Tensor] = torch.ops.specframe.update(
            key_states, value_states, self._key_index_BS, layer_idx
        )
        return found

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Return the number of slots attended to, a symbol, or the layer's own position inputs."""
        return self._lengths.get(layer_idx, self._key_index_BS.shape[1])


def traced_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None,
    sliding_window: int | None = None,
    **options: Any,
) -> torch.Tensor:
    """Return the attention of a forward that is traced, as an operator.

    Raises:
        ModelError: there is no mask.
    """
    if attention_mask is None:
        raise ModelError("it attends without a mask")
    if (bias := options.get("position_bias")) is not None:
        attention_mask = biased(attention_mask, bias)
    found: torch.Tensor = torch.ops.specframe.attend(
        query, key, value, attention_mask, module.layer_idx, scaling, sliding_window
    )
    return found


def update(
    key: torch.Tensor, value: torch.Tensor, _key_index: torch.Tensor, layer: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write a layer's keys and values to the cache of the forward under way; return those of all slots, (B, G, S, D).

    They lie in memory as the pieces after it expect them.
    """
    keys, values = CURRENT.get().cache.update(key, value, layer)
    return keys.contiguous(), values.contiguous()


def attend_to(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    layer: int | None,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Return what a layer's queries (B, H, T, D) attend to, (B, T, H, D)."""
    module = cast("torch.nn.Module", types.SimpleNamespace(layer_idx=layer))
    return attend(module, query, key, value, mask, scaling, sliding_window=window)[0].contiguous()


def update_and_attend(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    mask: torch.Tensor,
    layer: int,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Write a layer's keys and values to the cache, unless a piece has, and attend to all that it holds."""
    cache = CURRENT.get().cache
    key, value = cache.written(layer) if key is None else cache.update(key, value, layer)
    return attend_to(query, key, value, mask, layer, scaling, window)


CALLS: dict[Any, Callable[..., Any]] = {UPDATE: update, ATTEND: attend_to}
"""The functions that compute operators between pieces."""


def join(module: torch.fx.GraphModule) -> None:
    """Make one call of a layer's cache and its attention, where this reads what the cache returns as it is."""
    for node in [one for one in module.graph.nodes if one.target is ATTEND]:
        query, key, value, mask, layer, *others = node.args
        held = key.args[0] if key.op == "call_function" and key.args else None
        if not isinstance(held, torch.fx.Node) or held.target is not UPDATE or held.args[3] != layer:
            continue
        if len(held.users) == 2 and [*key.users] == [node] == [*value.users] and (key.args[1], value.args[1]) == (0, 1):
            node.target, node.args = update_and_attend, (query, *held.args[:2], mask, layer, *others)
            for one in (key, value, held):
                module.graph.erase_node(one)
