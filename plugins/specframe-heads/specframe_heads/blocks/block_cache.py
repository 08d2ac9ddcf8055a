"""A head's own cache of keys and values, with the layout that the run's alignment has for every cache.

Tensor names carry their shape: B rows, T tokens, S slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import torch
from torch import nn

from specframe.contracts.cache import KVShape, Placement
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.model import ForwardOptions
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch, Kept
from specframe.contracts.states import StateLayer
from specframe.model.attention.interface import gather_slots
from specframe.model.run import Run
from specframe_heads.blocks.net import Write


@attrs.define(eq=False)
class HeadRunner:
    """A head, as the cache of a run needs to know it. It attends by masks of its own, whatever backend the target is asked for."""

    module: nn.Module
    kv_shapes: list[KVShape]
    device: torch.device
    vocabulary: int
    role: str = "draft"
    context: int = 2**31
    state_layers: Mapping[int, StateLayer] = attrs.Factory(dict)

    def require(self, how: ForwardOptions, hidden: Iterable[int] = ()) -> None:
        """Accept whatever the run's forwards are like."""

    def tokens_at_once(self, slots: int, how: ForwardOptions) -> int:
        """Return that no number of tokens is too large."""
        return 2**31

    def by_lengths(self, how: ForwardOptions) -> bool:
        """Return that nothing is recorded."""
        return False

    def leaves_out_padding(self, places: int, tokens: int) -> bool:
        """Return that all tokens are computed."""
        return False

    def forward(self, *_: Any, **__: Any) -> Scores:
        """Refuse: the drafter feeds its head itself, at the places that its cache gives."""
        raise NotImplementedError

    def require_decodable(self, request: Request) -> None:
        """Refuse nothing: the target does."""

    by_rows = None


class HeadCache:
    """The keys and values of one head.

    Args:
        run: the run.
        runner: the head.
        block: tokens of the head's block, which may end beyond the draft.
    """

    def __init__(self, run: Run, runner: HeadRunner, block: int) -> None:
        self._cache, self._watch = run.open_cache(runner, capacity=run.capacity + block), run.watch

    def commit(self, batch: Batch, kept: Kept) -> None:
        """Forget all tokens but the kept ones."""
        self._cache.commit(batch, kept)

    def place(self, batch: Batch, block: Block, drafts: bool = False) -> tuple[Placement, Write]:
        """Return the places of tokens about to be fed, and the function that writes their keys and values.

        Args:
            batch: the rows.
            block: the tokens.
            drafts: whether keys are written that are none of the rows' own.
        """
        placement = self._cache.place(batch, block)
        if drafts:
            placement = placement.by_a_draft()
        self._watch.forward("draft", *block.ids_BT.shape)
        self._watch.fed("draft", block.tokens, block.ids_BT.numel())
        store = self._cache.store
        store.expect(placement)
        extent = placement.key_index_BS.shape[1]

        def write(layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            view = gather_slots(store.write(layer, keys, values), extent)
            return view.keys, view.values

        return placement, write
