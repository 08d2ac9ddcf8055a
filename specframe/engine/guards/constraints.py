"""The guard of constraints."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

import torch

from specframe.contracts.constraints import Drafted
from specframe.contracts.requests import Request
from specframe.engine.error_words import value_words
from specframe.engine.guards.base import Guard


class GuardedConstraint(Guard):
    """A constraint, guarded."""

    kind = "constraint"

    def begin(self, request: Request, vocabulary: int, tokenizer: Any) -> Any:
        """Return the constraint's first state."""
        self._vocabulary = vocabulary
        return self._call("begin", request, vocabulary, tokenizer)

    def masks(self, states: Rows[Any], drafted: Drafted) -> torch.Tensor:
        """Return the constraint's masks after checking them."""
        masks: torch.Tensor = self._call("masks", states, drafted)
        if not isinstance(masks, torch.Tensor):
            self._refuse("masks", "masks as a tensor", value_words(masks))
        if masks.dtype != torch.int32:
            self._refuse("masks", "masks of 32 bits a number, torch.int32", masks.dtype)
        shape = len(states), drafted.count, -(-self._vocabulary // 32)
        if masks.shape != shape:
            self._refuse("masks", f"masks of shape (B, T, ceil(V / 32)) = {shape}", tuple(masks.shape))
        if masks.device.type != "cpu":
            self._refuse("masks", "masks on the CPU", masks.device)
        return masks

    def advance(self, state: Any, tokens: list[int]) -> Any:
        """Return the constraint's next state."""
        return self._call("advance", state, tokens)
