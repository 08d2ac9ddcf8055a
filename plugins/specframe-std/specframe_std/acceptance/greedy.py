"""Greedy acceptance: a draft token is accepted if it is the target's most likely token."""

from __future__ import annotations

import torch

from specframe.contracts.drafts import Acceptance, Draft, Scores
from specframe.contracts.round import Batch
from specframe.model.run import Run
from specframe_std.trees.children import likeliest
from specframe_std.trees.paths import walk


class Greedy:
    """Accepts draft tokens while they are the target's most likely ones: the target's own greedy output."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"lossless", "draft-invariant", "tree", "distinct", "independent", "prunable", "deferred"})

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the most likely token, (B,)."""
        return logits_BV.argmax(-1)

    def siblings(
        self, batch: Batch, offset: int, logits_BFV: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the most likely tokens, (B, F, count), and the logarithms of their probabilities."""
        return likeliest(logits_BFV, count)

    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        """Return the longest path of the target's choices and its choice after it.

        The acceptance result's tokens are the target's choices. An accepted draft token equals the target's choice.
        """
        choices_BT = scores.logits_BTV.argmax(-1)
        if not draft.nodes:
            return Acceptance(torch.zeros_like(batch.lengths_B), choices_BT)
        if draft.parents_BN is not None:
            return walk(draft, lambda depth, place_B1: choices_BT.gather(1, place_B1))
        agrees_BK = choices_BT[:, :-1] == draft.tokens_BN
        return Acceptance(agrees_BK.cumprod(1).sum(1), choices_BT)
