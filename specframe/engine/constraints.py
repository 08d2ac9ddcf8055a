"""The constraints that requests name, each made once."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any

import torch

from specframe.contracts.constraints import Constraint, Drafted, Guide
from specframe.contracts.requests import Request
from specframe.engine.guards.roles import guard
from specframe.errors import PromptError, SpecframeError
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEPT = 256
"""Constraints that are kept for later requests, at most."""


class Constraints:
    """Makes the constraints that requests ask for, and the guide of each request.

    Args:
        usual: the constraint of requests that name none: a name, an object, or None.
        vocabulary: number of the target's token ids.
        tokenizer: the target's; None: it has none.
    """

    def __init__(self, usual: Any, vocabulary: int, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._usual, self._vocabulary, self._tokenizer = usual, vocabulary, tokenizer
        self._made: dict[Any, tuple[Any, Constraint]] = {}

    def of(self, request: Request) -> Constraint | None:
        """Return the constraint of a request; None: it has none.

        Raises:
            SpecframeError: nothing provides the name or an option, or the object is no constraint.
        """
        given = self._usual if request.constraint is None else request.constraint
        if given is None:
            return None
        key = given if isinstance(given, str) else id(given)
        if key not in self._made:
            made = guard("constraint", strategy(registry(), "constraint", given))
            if len(self._made) >= KEPT:
                del self._made[next(iter(self._made))]
            self._made[key] = given, made  # the object is held, so that no other one has its identity
        return self._made[key][1]

    def require(self, request: Request) -> None:
        """Raise :class:`PromptError` where the constraint of a request cannot be had."""
        try:
            self.of(request)
        except SpecframeError as error:
            raise PromptError(str(error)) from error

    def guide(self, request: Request) -> Guide | None:
        """Return the guide of a request that is given a row; None: it has no constraint."""
        constraint = self.of(request)
        return None if constraint is None else Guide(constraint, request, self._vocabulary, self._tokenizer)

    def hollow(self) -> Constraints:
        """Return those of dry runs: whatever a request asks for allows all tokens, since there are no numbers to ask it of."""
        return HollowConstraints(self._usual, self._vocabulary, self._tokenizer)


class HollowConstraints(Constraints):
    """The constraints of dry runs, which take the memory of masks and look at no token."""

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
