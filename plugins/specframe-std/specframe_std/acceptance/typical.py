"""Typical acceptance (Medusa, Cai et al. 2024). Not lossless."""

from __future__ import annotations

import torch

from specframe.contracts.drafts import Acceptance, Draft, Scores
from specframe.contracts.round import Batch
from specframe.value_checks import number
from specframe_std.acceptance.rejection import Rejection, acceptance, likelihoods, no_padding
from specframe_std.trees.children import likeliest
from specframe_std.trees.paths import deepest, place_after


class Typical(Rejection):
    """Accepts a draft token whose probability exceeds min(epsilon, delta * exp(-entropy)). NOT lossless: it favours the draft.

    Options:
        epsilon: threshold if the target's entropy is low; 0.09 as published.
        delta: factor of exp(-entropy) in the threshold if the entropy is high; 0.3 as published.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"samples", "tree", "distinct", "independent", "prunable", "deferred"})

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        self._epsilon = number("epsilon", epsilon, 0, 1, above=True)
        self._delta = number("delta", delta, 0, above=True)

    def siblings(
        self, batch: Batch, offset: int, logits_BFV: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the most likely tokens, (B, F, count), as published, and the logarithms of their probabilities."""
        return likeliest(logits_BFV, count)

    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        """Return the longest typical path and a sample from the target after it."""
        target_BTV = scores.logits_BTV.float().softmax(-1)
        entropy_BT = torch.special.entr(target_BTV).sum(-1)
        threshold_BT = (self._delta * torch.exp(-entropy_BT)).clamp(max=self._epsilon)
        rows = torch.arange(len(target_BTV), device=target_BTV.device)
        if draft.parents_BN is not None:
            typical_BN = likelihoods(target_BTV, draft) > threshold_BT.gather(1, draft.above_BN + 1)
            accepted_B, path_BK = deepest(draft, no_padding(draft, typical_BN))
            place_B = place_after(path_BK, accepted_B)
            return acceptance(self._seed, batch, draft, accepted_B, target_BTV[rows, place_B], path_BK)
        typical_BK = likelihoods(target_BTV, draft) > threshold_BT[:, : draft.nodes]
        accepted_B = no_padding(draft, typical_BK).long().cumprod(1).sum(1)
        return acceptance(self._seed, batch, draft, accepted_B, target_BTV[rows, accepted_B])
