"""A model with its own cache, as ``generate`` feeds it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from specframe.errors import ModelError

ONE_KEY_AND_VALUE = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""The types of layers that keep a key and a value of each token, and nothing else."""


class RoundedCache(DynamicCache):
    """A cache of transformers that keeps keys and values as a KV backend rounds them.

    Args:
        rounded: what a backend's :meth:`~specframe.contracts.cache.RoundingBackend.rounded` makes of keys or values.
        options: those of the cache.
    """

    def __init__(self, rounded: Callable[[torch.Tensor], torch.Tensor], **options: Any) -> None:
        super().__init__(**options)
        self._rounded = rounded

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *more: Any, **options: Any
    ) -> Any:
        """Keep the keys and values of a layer, and return all of them."""
        return super().update(self._rounded(key_states), self._rounded(value_states), layer_idx, *more, **options)

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> Any:
        """Keep the keys by which a layer chooses what it attends to, and return all of them."""
        rounded = self._rounded(indexer_key_states[:, None])[:, 0]
        return super().update_indexer(rounded, layer_idx)  # type: ignore[misc, unused-ignore]  # not in older versions


class OwnCache:
    """Feeds a model tokens one after the other, into a cache of transformers.

    Models with layers that keep other things make their cache themselves: some have a class of their own for it, or another name.

    Args:
        model: the model.
        whole: whether the cache keeps the tokens before a sliding window, too: a key then lies in the slot of its position.
        rounded: what becomes of keys and values, as :class:`RoundedCache` takes it, or None if they are kept as they are.

    Raises:
        ModelError: keys are rounded, and the model makes its cache itself.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        whole: bool = False,
        rounded: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        config = model.config.get_text_config()
        attending = ONE_KEY_AND_VALUE.issuperset(getattr(config, "layer_types", None) or ())
        self._cache: Any = None
        options: dict[str, Any] = {} if whole else {"config": config}
        if attending:
            self._cache = RoundedCache(rounded, **options) if rounded else DynamicCache(**options)
        elif rounded:
            raise ModelError(
                f"keys and values in 8 bits: expected a model whose layers all attend for a reference with the same, got "
                f"{type(model).__name__}, which has layers that keep other things"
            )
        self._model, self._takes = model, inspect.signature(model.forward).parameters
        self._name = "past_key_values" if "past_key_values" in self._takes else "cache_params"

    def feed(self, ids_BT: torch.Tensor, positions_BT: torch.Tensor, **options: Any) -> torch.Tensor:
        """Return the logits that a model has after tokens at these positions, (B, T, V) unless options say otherwise."""
        options[self._name] = self._cache
        if "position_ids" in self._takes:
            options["position_ids"] = positions_BT
        output = self._model(input_ids=ids_BT, use_cache=True, **options)
        self._cache = getattr(output, self._name)
        return output.logits
