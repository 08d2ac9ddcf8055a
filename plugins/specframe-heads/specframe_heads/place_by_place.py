"""Drafts whose tokens need no further pass: a head gives the logits of each place, of itself or from the token before it.

Tensor names carry their shape: B rows, F nodes whose children come next, K tokens of a chain, D size of a node's state,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from specframe_std.trees.chains import GrowingChain
from specframe_std.trees.growth import Frontier

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.round import Batch
from specframe.text.sampling import apply_processors
from specframe_heads.features import at
from specframe_heads.head import HeadDrafter

Step = Callable[[int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""(place in the draft, states (B, F, D) before it, tokens (B, F) before it) -> the head's logits, and the states after it; both
(B, F, ...), or (B, 1, ...) where they are the same for all nodes."""


def drawn(drafter: HeadDrafter, batch: Batch, budget: Budget, step: Step, states_B1D: torch.Tensor) -> Draft:
    """Return a chain of ``budget.depth`` tokens per row, or a tree within the budget, as the acceptance rule asks.

    Args:
        drafter: its options, its vocabulary and its rule are used.
        batch: the rows.
        budget: of at least one token.
        step: gives the logits of each place.
        states_B1D: the states before the first place.
    """
    if drafter.trees.chain:
        return chain(drafter, batch, budget, step, states_B1D)
    path = Path(drafter, batch, step, states_B1D)
    return drafter.trees.grow(batch, budget, drafter.rule, path.first(), path.run, spare=None).draft


def at_once(logits_BKV: torch.Tensor) -> tuple[Step, torch.Tensor]:
    """Return the step of a head whose logits do not depend on the draft's tokens, and its states before the first place: none."""
    return lambda place, states_B1D, tokens_BF: (logits_BKV[:, place, None], states_B1D), logits_BKV[:, :1, :0]


def chain(drafter: HeadDrafter, batch: Batch, budget: Budget, step: Step, states_B1D: torch.Tensor) -> Draft:
    """Return a chain of the budget's depth, at least one; see :func:`drawn`."""
    growing, last_B1 = GrowingChain(batch, budget), batch.last_tokens(1)
    for place in range(budget.depth):
        logits_B1V, states_B1D = step(place, states_B1D, last_B1)
        if not drafter.lengthen(batch, growing, logits_B1V):
            break
        last_B1 = growing.tokens_BK[:, -1:]
    return growing.draft


class Path:
    """The states along the paths of a tree that is being grown."""

    def __init__(self, drafter: HeadDrafter, batch: Batch, step: Step, states_B1D: torch.Tensor) -> None:
        self._step, self._vocabulary = step, drafter.head.vocabulary
        self._batch, self._states_BFD = batch, states_B1D

    def first(self) -> torch.Tensor:
        """Return the scores after each row's last token, (B, 1, V)."""
        return apply_processors(self._batch, self._batch.tokens_BS[:, :0], self._after(0, self._batch.last_tokens(1)))

    def run(self, frontier: Frontier) -> torch.Tensor:
        """Return the scores after each node of a frontier, (B, F, V)."""
        self._states_BFD = of(self._states_BFD, frontier.above_BF)
        logits_BFV = self._after(frontier.depth, frontier.tokens_BM[:, -frontier.width :])
        logits_BFV = logits_BFV.expand(-1, frontier.width, -1)
        return apply_processors(self._batch, frontier.tokens_BM, logits_BFV, frontier.parents_BM)

    def _after(self, place: int, tokens_BF: torch.Tensor) -> torch.Tensor:
        logits_BFV, self._states_BFD = self._step(place, self._states_BFD, tokens_BF)
        return self._vocabulary.full(logits_BFV)


def of(states_BFD: torch.Tensor, above_BF: torch.Tensor) -> torch.Tensor:
    """Return the states of nodes' parents; one state for all nodes stays one."""
    if states_BFD.shape[1] == 1:
        return states_BFD
    return at(states_BFD, above_BF.expand(len(states_BFD), -1))
