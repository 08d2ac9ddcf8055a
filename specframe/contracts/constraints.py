"""Constraints: what a sequence may say next.

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
    """Draft tokens of some rows on the host, and the places of which masks are wanted.

    Place 0 is after a row's last token and place n + 1 after draft token n. Wanted are the last places of these N + 1.
    """

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
    """Return the nodes on the path to a row's last token, which are none, and to each node of a tree, itself included.

    Args:
        parents: of each node, an earlier one; -1: the row's last token.
    """
    found: list[list[int]] = [[]]
    for node, parent in enumerate(parents):
        found.append([*found[parent + 1], node])
    return found


class Constraint(Protocol):
    """Decides which tokens may come next in each sequence that is decoded with it.

    A state stands for the tokens of one sequence so far, and is any object. It is made again from the tokens where a sequence has
    given its row back. Where a call raises an error, the sequences that it was made for end with this error, and the others go on.
    """

    def begin(self, request: Request, vocabulary: int, tokenizer: PreTrainedTokenizerBase | None) -> Any:
        """Return the state before the first generated token.

        Args:
            request: what is decoded; its ``stop_token_ids`` have to be allowed where the sequence may end.
            vocabulary: number of token ids, V.
            tokenizer: the target's; None: it has none.
        """

    def masks(self, states: Rows[Any], drafted: Drafted) -> torch.Tensor:
        """Return the masks at all wanted places of all rows, int32 on the CPU, (B, T, W).

        A draft may hold tokens that are not allowed, and such a token may follow another one: what a mask says after one means
        nothing, and there has to be one. A mask that allows no token ends the sequence with an error.

        Args:
            states: the state of each row, which stays as it is.
            drafted: what is drafted after it.
        """

    def advance(self, state: Any, tokens: list[int]) -> Any:
        """Return the state after further tokens, which stand; it may be the same object.

        They are allowed, unless the acceptance rule goes by something else than scores.
        """


@attrs.define(eq=False)
class Guide:
    """The constraint of one sequence, and its state as far as the sequence's tokens have been read."""

    constraint: Constraint
    request: Request
    vocabulary: int
    tokenizer: PreTrainedTokenizerBase | None
    state: Any = None
    read: int | None = None
    """Number of the sequence's tokens, prompt included, that the state stands for; None: it has not begun."""
    error: str | None = None
    """Why the constraint cannot go on with the sequence."""


def pack_masks(allowed_V: np.ndarray) -> torch.Tensor:
    """Return whether tokens are allowed, bool (..., V), as masks, int32 (..., W)."""
    spare = -allowed_V.shape[-1] % 32
    padded = np.pad(allowed_V, [(0, 0)] * (allowed_V.ndim - 1) + [(0, spare)])
    return torch.from_numpy(np.packbits(padded, axis=-1, bitorder="little").view("<i4").astype(np.int32))
