"""How the children of a tree's nodes are chosen: as the acceptance rule asks, and deterministically in greedy rows.

Tensor names carry their shape: B rows, F nodes whose children are chosen together, C children of each, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from specframe.contracts.round import Batch
from specframe_std.trees.growth import Children, Choose


def by_rule(rule: Any, batch: Batch) -> Choose:
    """Return the choice of an acceptance rule for a batch.

    A rule for trees has ``siblings``. Rows without a temperature get the likeliest tokens, whose probability is 1, whatever
    the rule: its noise would only make them worse.
    """
    logits, samples = "logits" in rule.needs, "samples" in rule.offers
    greedy = [sequence.request.plan.greedy for sequence in batch.sequences] if samples else []
    greedy_B11 = torch.tensor(greedy, device=batch.lengths_B.device)[:, None, None] if any(greedy) else None

    def choose(offset: int, logits_BFV: torch.Tensor, count: int) -> Children:
        count = min(count, logits_BFV.shape[-1])
        tokens_BFC, scores_BFC = rule.siblings(batch, offset, logits_BFV, count)
        if greedy_B11 is None:
            return Children(tokens_BFC, scores_BFC, logits_BFV[:, :, None] if logits else None)
        best_BFC, likely_BFC = likeliest(logits_BFV, count)
        tokens_BFC = best_BFC.where(greedy_B11, tokens_BFC)
        scores_BFC = likely_BFC.where(greedy_B11, scores_BFC)
        return Children(tokens_BFC, scores_BFC, certain(logits_BFV, tokens_BFC, greedy_B11) if logits else None)

    return choose


def likeliest(logits_BFV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the most likely tokens and the logarithms of their probabilities, (B, F, C) each."""
    best = logits_BFV.topk(count)
    return best.indices, best.values.float() - logits_BFV.float().logsumexp(-1, keepdim=True)


def certain(logits_BFV: torch.Tensor, tokens_BFC: torch.Tensor, greedy_B11: torch.Tensor) -> torch.Tensor:
    """Return the logits that children were drawn by, (B, F, C, V): in greedy rows probability 1 for each child itself."""
    logits_BFCV = logits_BFV[:, :, None].expand(-1, -1, tokens_BFC.shape[2], -1)
    peaks = torch.full_like(logits_BFCV, float("-inf")).scatter_(3, tokens_BFC[..., None], 0.0)
    return torch.where(greedy_B11[..., None], peaks, logits_BFCV)
