"""Constraints: what a sequence may say next. A request names one: requests of a batch have grammars of their own.

A *mask* has a bit for each token id, set where the token is allowed: bit ``id % 32`` of the number ``id // 32``. Tensor names carry
their shape: B rows, N draft tokens, T places of a row, V vocabulary, W numbers of a mask, ceil(V / 32).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from typing import Any, Protocol

import attrs
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from specframe.contracts.requests import Request


@attrs.frozen(eq=False)
class Drafted:
    """Draft tokens of some rows on the host. Masks are wanted at the last of the N + 1 places: place 0 is after a row's last token,
    place n + 1 after draft token n."""

    tokens: np.ndarray
    """The draft tokens, (B, N)."""
    parents: np.ndarray
    """The draft token that each follows, -1: the row's last token, (B, N)."""
    count: int
    """Number of places, T: from 1 to N + 1."""

    def paths(self, row: int) -> list[list[int]]:
        """Return the draft tokens before each wanted place of a row, in their order."""
        tokens, ways = self.tokens[row].tolist(), paths(self.parents[row].tolist())
        return [[tokens[node] for node in way] for way in ways[len(ways) - self.count :]]


def paths(parents: Iterable[int]) -> list[list[int]]:
    """Return the nodes on the path to a row's last token (none), and to each node of a tree, itself included. ``parents`` has the
    earlier node that each follows, or -1 for the row's last token."""
    found: list[list[int]] = [[]]
    for node, parent in enumerate(parents):
        found.append([*found[parent + 1], node])
    return found


class Constraint(Protocol):
    """Decides which tokens may come next in each sequence that is decoded with it.

    A state is any object that represents the tokens of one sequence so far; it may be made again from the tokens. Where a call
    raises an error, the sequences that it was made for end with it, and the others go on.
    """

    def begin(self, request: Request, vocabulary: int, tokenizer: PreTrainedTokenizerBase | None) -> Any:
        """Return the state before the first of V = ``vocabulary`` tokens is generated. A request's ``stop_token_ids`` have to be
        allowed where the sequence may end. ``tokenizer`` is the target's, if it has one."""

    def masks(self, states: Rows[Any], drafted: Drafted) -> torch.Tensor:
        """Return the masks at all wanted places of all rows, int32 on the CPU, (B, T, W); the rows' states stay as they are.

        After a draft token that is not allowed there has to be a mask, which means nothing. A mask that allows no token ends the
        sequence with an error.
        """

    def advance(self, state: Any, tokens: list[int]) -> Any:
        """Return the state after further accepted tokens; it may be the same object."""


def pack_masks(allowed_V: np.ndarray) -> torch.Tensor:
    """Return whether tokens are allowed, bool (..., V), as masks, int32 (..., W)."""
    spare = -allowed_V.shape[-1] % 32
    padded = np.pad(allowed_V, [(0, 0)] * (allowed_V.ndim - 1) + [(0, spare)])
    return torch.from_numpy(np.packbits(padded, axis=-1, bitorder="little").view("<i4").astype(np.int32))
