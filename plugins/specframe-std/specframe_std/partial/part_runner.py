"""A part of a model on the whole's cache."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedModel

from specframe.contracts.attention import AttentionBackend
from specframe.contracts.cache import KVShape
from specframe.model.runner import ModelRunner


class PartRunner(ModelRunner):
    """Runs a part of a model, made of the whole's modules, that writes to some layers of the whole's cache.

    It is not tried by itself: what it attends to was found right in the whole, and a cache that says its length by a layer that the
    part leaves out would be one that the part makes wrong masks for by itself.

    Args:
        whole: the model, a causal language model.
        part: a model of its modules, with the numbers of its layers.
        role: "draft", for observers and errors.

    Raises:
        ModelError: the whole cannot be fed.
    """

    def __init__(self, whole: PreTrainedModel, part: PreTrainedModel, role: str) -> None:
        super().__init__(part, role)
        self._whole = ModelRunner(whole, role)
        self._shapes = self._whole.kv_shapes
        self.dense = self._whole.dense

    @property
    def kv_shapes(self) -> list[KVShape]:
        """The shapes of the whole's layers."""
        return self._shapes

    @property
    def _numbers(self) -> Mapping[int, int] | None:
        return self._whole._numbers

    def without_masks(self, backend: AttentionBackend) -> str | None:
        """Return why an attention backend cannot take the place of the whole's masks, or None if it can."""
        return self._whole.without_masks(backend)
