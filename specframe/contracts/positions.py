"""Models that count the positions of their tokens by themselves: what in them does so, and what it receives in a forward.

Tensor names carry their shape: B rows, T tokens fed per row, S slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
import torch
from transformers import PreTrainedModel

Function = Callable[..., Any]


@attrs.frozen(eq=False)
class PositionInputs:
    """What a model that counts by itself receives in one forward."""

    forwards: Mapping[torch.nn.Module, Function] = attrs.Factory(dict)
    """The functions called in place of modules' own ``forward``."""
    functions: Mapping[tuple[Any, str], Function] = attrs.Factory(dict)
    """The functions called in place of other attributes, by owner and name."""
    lengths: Mapping[int, torch.Tensor] = attrs.Factory(dict)
    """What the cache reports to a layer as its length, (T,), by the layer's number."""


NOTHING = PositionInputs()


@attrs.frozen(eq=False)
class CountedPositions:
    """How one model counts positions by itself."""

    told: Callable[[torch.Tensor, torch.Tensor, int], PositionInputs] = lambda positions_BT, key_index_BS, orders: (
        NOTHING
    )
    """Returns what a forward receives. Its arguments are the positions of the tokens ((1, N) where a model has all rows in one),
    the index of the token in each slot, (B, S) or (1, S), negative if there is none, and a number above all indices."""
    absolute: bool = False
    """Whether the model embeds positions that it counts itself."""
    relative: bool = False
    """Whether it knows nothing of positions but a bias by the distance of tokens."""
    in_layers: bool = False
    """Whether layers have such a part: what is compiled of them would keep what it received at first."""
    counts_padding: bool = False
    """Whether its output depends on padding before a row's tokens, as the model is without these inputs."""
    biases: bool = False
    """Whether each layer adds a bias of its own to scores, for which there has to be a mask."""


UNCOUNTED = CountedPositions()
"""Most models: they take positions, or need none."""


class PositionKind(Protocol):
    """Knows the models that count positions in one way."""

    def find(self, model: PreTrainedModel) -> CountedPositions | None:
        """Return how a model counts positions by itself, or None if it does not, or in a way that is not known here."""
