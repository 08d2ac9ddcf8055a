"""Processors, criteria, a drafter and a constraint that go to worker processes, which import this module."""

from __future__ import annotations

from typing import Any

import torch
from specframe_testing.constraint_fakes import DigitSum
from transformers import LogitsProcessor, StoppingCriteria

from specframe.contracts.constraints import Drafted
from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.requests import Request
from specframe.contracts.roles import Drafter
from specframe.contracts.round import Batch


class Raising(LogitsProcessor):
    """Raises an error, in a worker and elsewhere."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        raise ValueError("no such thing")


class After(StoppingCriteria):
    """Ends a sequence at a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length, device=input_ids.device)


class Twigs(Drafter):
    """A drafter of one static tree, whose rows share one row of parents: the row's last token twice, and once more after that."""

    needs = frozenset({"tree", "move"})
    offers = frozenset({"tree", "budget"})

    def budget(self, depth: int | None = None) -> Budget:
        """Return the budget of the tree."""
        return Budget(2, 3)

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return the tree, or nothing where nothing is asked for."""
        tokens_BN = batch.last_tokens(1).repeat(1, 3)
        return (
            Draft(tokens_BN, parents_BN=torch.tensor([[-1, -1, 0]]), depth=2)
            if budget.depth == 2
            else Draft(tokens_BN[:, :0])
        )


class Tiring(Twigs):
    """A drafter that raises an error at its fifth draft of a run."""

    def start(self, run: Any) -> None:
        """Count anew."""
        self.left = 5

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return the tree, as long as it can."""
        self.left -= 1
        if not self.left:
            raise ValueError("planted")
        return super().propose(batch, budget)


class Failing(DigitSum):
    """Raises an error for one request, or in every call of a kind."""

    def __init__(self, member: str, index: int | None = 2) -> None:
        super().__init__()
        self._member, self._index = member, index

    def begin(self, request: Request, vocabulary: int, tokenizer: Any) -> Any:
        """Begin, or fail."""
        if self._member == "begin" and request.index == self._index:
            raise RuntimeError("no grammar")
        return request.index, super().begin(request, vocabulary, tokenizer)

    def masks(self, states: Any, drafted: Drafted) -> torch.Tensor:
        """Return masks, or fail."""
        if self._member == "masks":
            raise RuntimeError("no grammar")
        if self._member == "shape":
            return super().masks([state for _, state in states], drafted)[:, :, :1]
        found = super().masks([state for _, state in states], drafted)
        if self._member == "nothing":
            for row, (index, state) in enumerate(states):
                if index == self._index and state.total > 6:
                    found[row] = 0
        return found

    def advance(self, state: Any, tokens: list[int]) -> Any:
        """Go on, or fail."""
        if not isinstance(state, tuple):
            return super().advance(state, tokens)
        if self._member == "advance" and state[0] == self._index:
            raise RuntimeError("no grammar")
        return state[0], super().advance(state[1], tokens)
