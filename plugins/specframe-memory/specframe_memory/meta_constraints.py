"""The constraints of memory profiling: each allows all tokens, since there are no numbers to ask it of."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

import torch

from specframe.contracts.constraints import Constraint, Drafted
from specframe.contracts.requests import Request
from specframe.engine.parts import Constraints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class MetaConstraints(Constraints):
    """Constraints that allow all tokens: they take the memory of masks and look at no token."""

    def of(self, request: Request) -> Constraint | None:
        """Return what allows all tokens, if the request has a constraint."""
        return None if self._usual is None and request.constraint is None else ALL_TOKENS


class AllTokens:
    """Allows all tokens. Its state is the number of token ids."""

    def begin(self, request: Request, vocabulary: int, tokenizer: PreTrainedTokenizerBase | None) -> int:
        """Return the number of token ids."""
        return vocabulary

    def masks(self, states: Rows[int], drafted: Drafted) -> torch.Tensor:
        """Return masks with all bits set."""
        return torch.full((len(states), drafted.count, -(-states[0] // 32)), -1, dtype=torch.int32)

    def advance(self, state: int, tokens: list[int]) -> int:
        """Return the state."""
        return state


ALL_TOKENS = AllTokens()
"""The one there is: masks are asked for once for all rows of a constraint."""
