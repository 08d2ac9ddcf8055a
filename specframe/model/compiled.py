"""Decoder layers compiled with torch.compile: one graph for all layers of one kind, with attention left as it is.

What a layer does to its input is compiled; attention, and the cache with it, is one operator that is not looked into. So a graph
depends neither on the layer nor on the KV backend, and eager and compiled layers share all code that knows of slots. A graph is
compiled for one row and for several, with one token per row and with more.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
import torch.fx.experimental._config
from transformers import PreTrainedModel

from specframe.errors import ModelError
from specframe.model.attention.interface import attend
from specframe.model.twin import CURRENT, own

OPERATOR = "specframe::attend"
BACKEND = "inductor"
"""Backend of torch.compile."""


def decoder_layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the modules that transformers calls ``_no_split_modules``."""
    kinds = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in kinds]


class CompiledLayers:
    """The decoder layers of a model, compiled."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.forwards: Mapping[torch.nn.Module, Callable[..., Any]] = {
            layer: torch.compile(own(layer), dynamic=True, backend=BACKEND) for layer in decoder_layers(model)
        }

        """The compiled ``forward`` of each layer."""

    def __len__(self) -> int:
        return len(self.forwards)


@contextlib.contextmanager
def ints_and_sizes_left_open() -> Iterator[None]:
    """Compile graphs inside the block that hold for every layer index, and for sizes that happened to be equal."""
    with (
        torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True, recompile_limit=64),
        torch.fx.experimental._config.patch(use_duck_shape=False),  # type: ignore[attr-defined]
    ):
        yield


torch.library.define(
    OPERATOR,
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, SymInt layer, float? scaling, SymInt? window) -> Tensor",
)


@torch.library.impl(OPERATOR, "default")
def _update_and_attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    layer: int,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    state, module = CURRENT.get(), cast("torch.nn.Module", types.SimpleNamespace(layer_idx=layer))
    if state.cache is not None:  # None: another thread has compiled the model for itself
        key, value = state.cache.update(key, value, layer)
    if state.masks and mask is not None:
        if (address := mask.data_ptr()) not in state.masks:
            raise ModelError("expected layers that hand their mask on as it is, found some that compute another")
        mask = state.masks[address]
    return attend(module, query, key, value, mask, scaling, sliding_window=window)[0]


@torch.library.register_fake(OPERATOR)
def _shape(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> torch.Tensor:
    rows, heads, length, _size = query.shape
    return query.new_empty(rows, length, heads, value.shape[-1])
