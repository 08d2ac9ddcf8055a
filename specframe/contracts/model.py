"""Models without a cache, and how their forwards are run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import attrs
import torch

from specframe.contracts.attention import Asked
from specframe.contracts.cache import KVShape, KVStore, Placement
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch, Sequence
from specframe.contracts.states import StateLayer, StateStore


@attrs.frozen(eq=False)
class ForwardOptions:
    """How the forwards over one cache are run: one object for all of them, so that a model may keep what follows from it."""

    attention: Asked = ()
    layers: str = "eager"
    """How decoder layers are run: "eager", "traced", "compiled", or "auto": as soon as each pays. It may know of no layers."""
    states: StateStore | None = None
    """The states of layers that keep one, which expect the block, or None if no layer does."""
    direct: bool = False
    """Whether the store is a :class:`specframe.contracts.cache.DirectStore`."""


PLAIN = ForwardOptions()
"""Mask tensors, and layers as they are."""


class StraightForward(Protocol):
    """A model's forward as straight code, which computes what its modules do."""

    hidden: tuple[int, ...]
    """The numbers of the hidden states that it gives."""

    def serves(self, padding_free: bool, masks: bool) -> bool:
        """Return whether it can be fed the tokens of all rows in one, (1, N), or attention that takes no masks."""

    def __call__(self, *given: torch.Tensor) -> list[torch.Tensor]:
        """Return the logits (B, K, V), and these hidden states.

        ``given``: ids (B, T), positions (B, T), the index of the token in each slot (B, S), the numbers of the tokens whose logits
        are asked for (K,), and the mask of each kind of layer.
        """


class Layers(Protocol):
    """Decides which forwards of one model run as straight code; made for a :class:`specframe.model.runner.ModelRunner`."""

    def of(self, how: ForwardOptions, rows: int, width: int, hidden: tuple[int, ...]) -> StraightForward | None:
        """Return the forward to run with ``rows`` times ``width`` tokens, or None where the modules are called.

        ``how.layers`` is "traced", "compiled" or "auto".
        """


class ByRows(Protocol):
    """What a model computes otherwise for some rows, as where a long prompt takes other rotary factors."""

    def apart(self, sequence: Sequence) -> bool:
        """Return whether a sequence is of the one kind or the other: those of unlike kinds share no keys."""

    def placed(self, batch: Batch, placement: Placement) -> Placement:
        """Return a placement that tells the model of its rows' kinds."""


class Model(Protocol):
    """A model without a cache, and the facts of it that strategies need."""

    role: str
    """"target" or "draft"."""
    context: int
    """Its longest sequence, in tokens."""
    vocabulary: int
    """Its number of token ids."""
    device: torch.device

    @property
    def module(self) -> torch.nn.Module:
        """The model as torch knows it, for strategies that borrow parts of it."""

    @property
    def kv_shapes(self) -> list[KVShape]:
        """The shape of every attending layer's keys and values."""

    @property
    def state_layers(self) -> Mapping[int, StateLayer]:
        """The modules that keep a state, numbered in the order of their layers, or nothing if all layers only attend."""

    def require(self, how: ForwardOptions, hidden: Iterable[int] = ()) -> None:
        """Raise :class:`specframe.errors.ModelError` unless forwards can be run so, and return these hidden states."""

    def tokens_at_once(self, slots: int, how: ForwardOptions) -> int:
        """Return how many prompt tokens, over all rows, one forward computes that attends to ``slots`` slots."""

    def by_lengths(self, how: ForwardOptions) -> bool:
        """Whether tokens whose slots are their indices attend by lengths alone, so that a captured graph serves every length."""

    def leaves_out_padding(self, places: int, tokens: int) -> bool:
        """Whether forwards of blocks with ``places`` token slots compute only the real tokens, of which there are ``tokens``."""

    def forward(
        self,
        block: Block,
        placement: Placement,
        store: KVStore,
        *,
        keep: int,
        hidden: tuple[int, ...] = (),
        how: ForwardOptions = PLAIN,
    ) -> Scores:
        """Feed a block into a store, which receives the placement first; return the scores of its last ``keep`` tokens.

        Ids beyond the vocabulary are padding. The store finds a layer by its index in :attr:`kv_shapes`; ``hidden`` has the numbers
        of hidden states to return of all tokens, as :attr:`Scores.hidden`.
        """

    def require_decodable(self, request: Request) -> None:
        """Raise :class:`specframe.errors.PromptError`, in one sentence, for a request that cannot be decoded."""

    @property
    def by_rows(self) -> ByRows | None:
        """What is computed otherwise for some rows, or None."""
