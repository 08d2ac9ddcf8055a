"""The constraints that requests name, each made once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specframe.contracts.constraints import Constraint
from specframe.contracts.requests import Request
from specframe.engine.guards.guard_table import guard
from specframe.errors import PromptError, SpecframeError
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry
from specframe.text.constrained_logits import Guide

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEPT = 256
"""Constraints that are kept for later requests, at most."""


class Constraints:
    """Makes the constraints that requests ask for, and the guide of each request.

    Args:
        usual: the constraint of requests that name none: a name, an object, or None.
        vocabulary: number of the target's token ids.
        tokenizer: the target's, or None if it has none.
    """

    def __init__(self, usual: Any, vocabulary: int, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._usual, self._vocabulary, self._tokenizer = usual, vocabulary, tokenizer
        self._made: dict[Any, tuple[Any, Constraint]] = {}

    def of(self, request: Request) -> Constraint | None:
        """Return the constraint of a request, or None if it has none.

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
        """Return the guide of a request that is given a row, or None if it has no constraint."""
        constraint = self.of(request)
        return None if constraint is None else Guide(constraint, request, self._vocabulary, self._tokenizer)
