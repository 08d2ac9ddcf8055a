"""States: what a layer keeps of a row's tokens in place of keys and values, and how it is cropped to the accepted tokens.

A state (of a gated delta rule, Mamba-2, a short convolution) is a few numbers per row, which cannot forget a token. A store has
each row's state after the accepted tokens, and what was fed since: it takes in those of them that are accepted.

Tensor names carry their shape: B rows, T tokens fed per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
import torch

from specframe.contracts.cache import KVBackend
from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch, Kept, Sequence

Parts = tuple[torch.Tensor, ...]
"""The parts of rows' states, (B, ...) each, as :attr:`StateShape.sizes` has them."""
After = Parts | Callable[[], Parts]
"""Rows' states after a block, or what computes them where they are asked for: nobody asks where drafts are rejected."""
Inputs = tuple[torch.Tensor, ...]
"""What a layer's state takes in of each token, (B, T, ...) each."""


@attrs.frozen
class StateShape:
    """Shape of one layer's state of one row. All its numbers are 0 before the row's first token."""

    sizes: tuple[tuple[int, ...], ...]
    """The shape of each part, as of the matrix of a delta rule and of the window of a convolution."""
    dtypes: tuple[torch.dtype, ...]
    """The dtype of each part."""
    device: torch.device | None = None
    """Where the layer is, if that is not the device that the store is opened on."""


@attrs.frozen(eq=False)
class LayerState:
    """The states of one layer in one forward, as its function is given them."""

    before: Parts
    """Each row's state after the tokens before its first real one of the block. Not to be written to."""
    real_BT: torch.Tensor
    """Which places of the block hold a token, (B, T), bool; the others, before them, leave no trace in the state."""
    parents_BT: torch.Tensor | None
    """Place in the block of the token that each token follows, -1: the one that ``before`` ends with, or None for a chain."""
    sees_BTT: torch.Tensor | None
    """Whether a place sees another place (last axis), itself or one of its ancestors, (1 or B, T, T), or None for a chain."""
    prompt_BT: torch.Tensor | None
    """Which places hold a token of the row's prompt, (B, T), bool, or None for all."""
    note: Callable[[Inputs, After | None], None]
    """Receives once what the state takes in of each token, and the rows' states after the block, or None if it branches."""
    apart: bool = False
    """Whether places without a token may follow a state that is not all zeros. Else they precede a row's first token of all."""


class StateKind(Protocol):
    """A kind of state, and the layers of models that keep it. It has no state of its own: one object serves all models."""

    def layers(self, model: torch.nn.Module) -> Mapping[int, torch.nn.Module | tuple[torch.nn.Module, ...]]:
        """Return the modules of a model that keep such a state, by the number of their layer. A layer may have several."""

    def shape(self, layer: torch.nn.Module) -> StateShape:
        """Return the shape of the state of one of these modules."""

    def forward(self, layer: torch.nn.Module, state: LayerState) -> Callable[..., Any]:
        """Return what is called in place of a layer's ``forward``, with the same arguments, in one forward of the model.

        It goes on from ``state.before``, passes over what is not real, has each token follow its parent, and calls ``state.note``.
        """

    def advance(self, layer: torch.nn.Module, before: Parts, inputs: Inputs, counts_B: torch.Tensor) -> Parts:
        """Return the states after taking in the first ``counts_B[i]`` of T noted tokens in row i, without synchronisation."""


class BitwiseKind(StateKind, Protocol):
    """A kind whose states and outputs can be had the same to the bit, whatever else is in a row's batch. It offers "bitwise"."""

    def by_token(self) -> StateKind:
        """Return the same kind, whose ``forward`` and ``advance`` take in one token after the other, by the same operations
        whatever else is fed. What is not real, or not accepted, leaves a state as it is, to the bit."""


class StateLayer(Protocol):
    """A module of a model that keeps a state, as a store of states knows it."""

    @property
    def number(self) -> int:
        """The number of its layer."""

    @property
    def shape(self) -> StateShape:
        """The shape of its state."""

    def advance(self, before: Parts, inputs: Inputs, counts_B: torch.Tensor) -> Parts:
        """Return the states after taking in the first ``counts_B[i]`` tokens in row i, as :meth:`StateKind.advance` does."""


class StateStore(Protocol):
    """The states of one model, for every live sequence."""

    def arrange(self, sequences: list[Sequence]) -> None:
        """Make ``sequences`` the rows of the forwards to come, in this order.

        A sequence that has no row begins with zeros, a fork with what :meth:`remember` has kept of its parent.
        """

    def begin(self, batch: Batch, block: Block) -> None:
        """Announce the next forward. It begins where each row's state ends, or goes on from the chain that was fed last.

        Raises:
            ContractError: it begins elsewhere.
        """

    def state(self, number: int) -> LayerState:
        """Return the states of this number for the expected forward."""

    def commit(self, batch: Batch, kept: Kept) -> None:
        """Take in the kept tokens of those fed since the last call, forget the others, without synchronisation of the device.

        Nothing is taken in of what was fed to rows that have all ended since: their round ran out of memory.

        Raises:
            ContractError: a row is to keep fewer tokens than its state holds.
        """

    def remember(self, batch: Batch) -> None:
        """Keep a copy of the states of sequences that have forks to come, which start from there."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""


class RowStore(StateStore, Protocol):
    """A store of states that also feeds rows which no batch has, as where a model is tried."""

    def feed(self, index_BT: torch.Tensor) -> None:
        """Begin a forward of the first rows: of tokens with these indices, of which the last is no part of a prompt."""

    def forget(self) -> None:
        """Let go of what was fed: what a layer has noted refers to its forward, and would stay with it."""


class PrefixStates(StateStore, Protocol):
    """A store that keeps copies of states for rows that begin with the same tokens, and serves runs of any size."""

    def begin_after(self, sequence: Sequence, tokens: int) -> int:
        """Return after how many of its first ``tokens``, whose keys and values are cached, a sequence can begin.

        Asked again with fewer where another model can begin after fewer: the row begins after as many as were returned last.
        """

    def widen(self, rows: int) -> None:
        """Serve a run of ``rows`` sequences. No sequence is live; copies stay."""


class StateBackend(KVBackend, Protocol):
    """A KV backend that offers "states": it keeps them as well, with "prefix" in a :class:`PrefixStates`."""

    def open_states(self, layers: Mapping[int, StateLayer], rows: int, device: torch.device) -> StateStore:
        """Return the store of the states of a model whose keys and values were opened last; it may be the same object.

        Args:
            layers: the modules that keep a state, numbered from 0 in the order of their layers.
            rows: the sequences that there is room for.
            device: where states are, if their shape names no other.
        """
