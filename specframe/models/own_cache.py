"""A model with its own cache, as ``generate`` feeds it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

ONE_KEY_AND_VALUE = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""The types of layers that keep a key and a value of each token, and nothing else."""


class OwnCache:
    """Feeds a model tokens one after the other, into a cache of transformers.

    Models with layers that keep other things make their cache themselves: some have a class of their own for it, or another name.

    Args:
        model: the model.
        whole: whether the cache keeps the tokens before a sliding window, too: a key then lies in the slot of its position.
    """

    def __init__(self, model: PreTrainedModel, whole: bool = False) -> None:
        config = model.config.get_text_config()
        attending = ONE_KEY_AND_VALUE.issuperset(getattr(config, "layer_types", None) or ())
        self._cache: Any = None
        if attending:
            self._cache = DynamicCache() if whole else DynamicCache(config=config)
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
