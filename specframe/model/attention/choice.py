"""The attention backend of each forward. A backend is tried on the model, and used where it gives what mask tensors give."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from specframe.contracts.attention import Asked, AttentionBackend, AttentionFacts
from specframe.contracts.cache import ChunkWindow, Placement, Window
from specframe.errors import ModelError
from specframe.models.layer_configs import layer_configs
from specframe.value_checks import unwrap_guards

if TYPE_CHECKING:
    from specframe.model.runner import ModelRunner

PREFILL_TOKENS = 4096
"""Prompt tokens read in one forward pass, over all rows, at most."""

LARGEST_MASK = 2**28
"""Bytes that the masks of one forward may take. Beyond that a backend without masks takes their place, or prompts are read in
shorter chunks."""


class Attention:
    """What is known of the attention of a model that a runner feeds."""

    def __init__(self, runner: ModelRunner) -> None:
        heads = [getattr(one, "num_attention_heads", 1) for one in layer_configs(runner.config)]
        shapes, windows = [shape for shape in runner.kv_shapes if shape.value_size], runner.windows.values()
        self.name, self.implementation, self.fault = str(runner), runner.implementation, runner.without_masks
        self.facts = AttentionFacts(
            runner.device, runner.dtype, max(heads), tuple(dict.fromkeys(shapes)), tuple(dict.fromkeys(windows))
        )
        of_shapes = heads if len(heads) == len(shapes) else [max(heads)] * len(shapes)  # not all layers need have keys
        shared = max((own // shape.heads for own, shape in zip(of_shapes, shapes, strict=True)), default=1)
        of_heads = 2 * max(heads) if runner.counts.biases else shared if shared > 1 else 0
        self.mask_bytes = self.facts.dtype.itemsize * (max(len(windows), 1) + of_heads)
        """Bytes that one token's masks have for each slot: one for each kind of layer, and one for each query that shares its head.
        Where scores have a bias, each head has that and the mask with it."""


class AttentionChoice:
    """The attention backends of one model's forwards: the backend asked for, or those that "auto" chooses from.

    Raises:
        ModelError: the model cannot attend as asked on its device.
    """

    def __init__(self, model: Attention, asked: Asked) -> None:
        self._model = model
        self._candidates = asked if isinstance(asked, tuple) else ()
        self.named = None if isinstance(asked, tuple) or "masks" in asked.offers else asked
        """The backend asked for, or None for "auto", or mask tensors."""
        if self.named is not None:
            self._require(self.named)

    def way(self, placement: Placement) -> AttentionBackend | None:
        """Return the backend that takes the mask's place in a forward, or None if it has a mask."""
        if self.named is not None:
            return self.named if takes(self.named, placement) else None
        if placement.in_order and self._packing is not None and takes(self._packing, placement):
            return self._packing
        large = placement.index_BT.numel() * placement.key_index_BS.shape[1] * self._model.mask_bytes > LARGEST_MASK
        return self._sparing if large and self._sparing is not None and takes(self._sparing, placement) else None

    @property
    def packs(self) -> bool:
        """Whether tokens whose slots are their places attend by lengths alone."""
        return self._packing is not None if self.named is None else "lengths" in self.named.offers

    def prefill_tokens(self, slots: int) -> int:
        """Return how many tokens of prompts, over all rows, are read in one forward that attends to ``slots`` slots."""
        tokens = min(PREFILL_TOKENS, LARGEST_MASK // (slots * self._model.mask_bytes))
        if tokens == PREFILL_TOKENS:
            return tokens
        if self.named is None:
            return tokens if self._sparing is None else PREFILL_TOKENS
        return tokens if "lengths" in self.named.offers else PREFILL_TOKENS

    @functools.cached_property
    def _packing(self) -> AttentionBackend | None:
        """The backend that "auto" takes for tokens whose slots are their places, or None for none of them."""
        return next((one for one in self._candidates if "lengths" in one.offers and self._agrees(one)), None)

    @functools.cached_property
    def _sparing(self) -> AttentionBackend | None:
        """The backend that "auto" takes where masks would be large, or None for none of them."""
        return next((one for one in self._candidates if "lengths" not in one.offers and self._agrees(one)), None)

    def _agrees(self, backend: AttentionBackend) -> bool:
        """Return whether a backend is worth taking for the model unasked, and gives what mask tensors give."""
        model, unasked = self._model, attrs.evolve(self._model.facts, asked=False)
        possible = model.implementation == "sdpa" and kinds_of_windows(unasked.windows) <= backend.offers
        return possible and backend.suits(unasked) and model.fault(backend) is None

    def _require(self, backend: AttentionBackend) -> None:
        """Raise :class:`ModelError` when the model cannot attend by a backend on its device."""
        name, model, facts = repr(type(unwrap_guards(backend)).__name__.lower()), self._model.name, self._model.facts
        if (attends := self._model.implementation) != "sdpa":
            raise ModelError(
                f"attention {name} takes the place of sdpa, but {model} was loaded with "
                f"{attends}: load it with sdpa, or ask for 'masked'"
            )
        if lacking := sorted(kinds_of_windows(facts.windows) - backend.offers):
            told = " and ".join(WINDOWED[kind] for kind in lacking)
            raise ModelError(f"attention {name} cannot be had for {model}: expected a model without {told}")
        if not backend.suits(facts):
            raise ModelError(
                f"attention {name} cannot be had for {model} on {facts.device.type} in {str(facts.dtype)[6:]}: "
                f"expected {backend.expects}; 'auto' takes it where it can be had"
            )
        if fault := self._model.fault(backend):
            raise ModelError(f"attention {name} cannot be had for {model}, because {fault}: ask for 'auto' or 'masked'")


WINDOWED = {"chunk": "chunks", "window": "sliding windows"}
"""What a layer has that a backend has to offer the word for."""


def kinds_of_windows(windows: Iterable[Window]) -> set[str]:
    """Return the capabilities that a backend has to offer for layers with these windows."""
    return {"chunk" if isinstance(window, ChunkWindow) else "window" for window in windows if window}


def takes(backend: AttentionBackend, placement: Placement) -> bool:
    """Return whether a backend can plan a placement; what it cannot is left to mask tensors."""
    tree = placement.sees_BTT is not None and "tree" not in backend.offers
    return not tree and ("lengths" not in backend.offers or placement.in_order)
