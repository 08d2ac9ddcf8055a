"""Typical acceptance (Medusa, Cai et al. 2024). Not lossless."""

from __future__ import annotations

import torch

from specframe.contracts.drafts import Draft, Scores, Verdict
from specframe.contracts.round import Batch
from specframe.values import number
from specframe_std.acceptance.rejection import Rejection, likelihoods, verdict


class Typical(Rejection):
    """Accepts a draft token whose probability exceeds min(epsilon, delta * exp(-entropy)). NOT lossless: it favours the draft.

    Options:
        epsilon: threshold if the target's entropy is low; 0.09 as published.
        delta: factor of exp(-entropy) in the threshold if the entropy is high; 0.3 as published.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"samples"})

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        self._epsilon = number("epsilon", epsilon, 0, 1, above=True)
        self._delta = number("delta", delta, 0, above=True)

    def judge(self, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
        """Return the longest typical prefix and a sample from the target after it."""
        target_BTV = scores.logits_BTV.float().softmax(-1)
        entropy_BT = torch.special.entr(target_BTV).sum(-1)
        threshold_BT = (self._delta * torch.exp(-entropy_BT)).clamp(max=self._epsilon)
        typical_BK = likelihoods(target_BTV, draft) > threshold_BT[:, : draft.nodes]
        accepted_B = typical_BK.long().cumprod(1).sum(1)
        rows = torch.arange(len(accepted_B), device=accepted_B.device)
        return verdict(self._seed, batch, draft, accepted_B, target_BTV[rows, accepted_B])
