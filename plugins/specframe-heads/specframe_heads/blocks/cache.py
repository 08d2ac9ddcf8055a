"""A head's own cache of keys and values, laid out as the run's alignment lays out every cache.

Tensor names carry their shape: B rows, T tokens, S slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import attrs
import torch
from torch import nn

from specframe.contracts.cache import KVShape, Placement
from specframe.contracts.drafts import Block
from specframe.contracts.roles import AttentionBackend, AttentionFacts
from specframe.contracts.round import Batch, Kept
from specframe.contracts.run import Model, Run
from specframe.contracts.states import StateShape
from specframe.forward.views import gathered
from specframe_heads.blocks.net import Write


@attrs.frozen
class OwnAttention:
    """The attention of a head, as the choice of attention backends knows it: the head attends by masks of its own.

    Whatever is asked for is asked of the target, so that nothing is refused for the head's sake.
    """

    facts: AttentionFacts
    name: str = "the head"
    implementation: str = "sdpa"

    def fault(self, backend: AttentionBackend) -> None:
        """Return that no backend is at fault: none is used."""

    def mask_bytes(self, slots: int) -> int:
        """Return a size that limits nothing."""
        return 1


@attrs.frozen(eq=False)
class HeadRunner:
    """A head, as the cache of a run needs to know it."""

    module: nn.Module
    kv_shapes: list[KVShape]
    device: torch.device
    vocabulary: int
    attention: OwnAttention
    role: str = "draft"
    context: int = 2**31
    spread: bool = False
    state_shapes: Mapping[int, StateShape] = attrs.Factory(dict)


class HeadCache:
    """The keys and values of one head.

    Args:
        run: the run.
        model: the head.
        kv_shapes: of its layers.
    """

    def __init__(self, run: Run, model: nn.Module, kv_shapes: list[KVShape]) -> None:
        device, dtype = run.runner.device, next(model.parameters()).dtype
        attention = OwnAttention(AttentionFacts(device, dtype, 1, (), ()))
        runner = HeadRunner(model, kv_shapes, device, run.runner.vocabulary, attention)
        self._cache, self._watch = run.open_cache(cast(Model, runner)), run.watch

    def settle(self, batch: Batch, kept: Kept) -> None:
        """Forget all tokens but those that stand."""
        self._cache.settle(batch, kept)

    def place(self, batch: Batch, block: Block) -> tuple[Placement, Write]:
        """Return the places of tokens about to be fed, and the function that writes their keys and values."""
        placement = self._cache.place(batch, block)
        self._watch.forward("draft", *block.ids_BT.shape)
        self._watch.fed("draft", block.tokens, block.ids_BT.numel())
        store = self._cache.store
        store.expect(placement)
        extent = placement.key_order_BS.shape[1]

        def write(layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            view = gathered(store.write(layer, keys, values), extent)
            return view.keys, view.values

        return placement, write
