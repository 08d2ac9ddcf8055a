"""Block verification (Sun et al. 2024): decide on the whole draft at once."""

from __future__ import annotations

import torch

from specframe.contracts.drafts import Acceptance, Draft, Scores
from specframe.contracts.round import Batch
from specframe_std.acceptance.rejection import (
    Rejection,
    acceptance,
    meant,
    of_this_round,
    probabilities,
    ratios,
    residual,
)
from specframe_std.noise import Stream, uniform


class BlockVerification(Rejection):
    """Accepts the longest prefix that a test of the whole draft passes: lossless, and never fewer tokens on average than rejection.

    With p_0 = 1 and p_i = min(1, p_{i-1} * P(x_i) / Q(x_i)), prefix i passes with probability h_i = S_i / (S_i + 1 - p_i), where
    S_i = sum over x of max(0, p_i P(x | x_1..x_i) - Q(x | x_1..x_i)); the whole draft with h_K = p_K. Where Q is no distribution (a
    logit is nan or infinity), and where padding begins, the row's draft ends.
    """

    offers = frozenset({"lossless", "samples"})

    def __init__(self) -> None:
        super().__init__()

    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        """Return the longest passing prefix and a sample from max(0, p_i P - Q) after it."""
        logits_BTV = scores.logits_BTV
        target_BTV = logits_BTV.float().softmax(-1)
        draft_BKV = probabilities(draft, logits_BTV.shape[-1])
        ratios_BK = ratios(draft, target_BTV, draft_BKV)
        barrier = [torch.ones_like(ratios_BK[:, :1] if draft.nodes else logits_BTV[:, :1, 0], dtype=torch.float32)]
        for place in range(draft.nodes):
            barrier.append((barrier[-1] * ratios_BK[:, place : place + 1]).clamp(max=1))
        joint_BT = torch.cat(barrier, dim=1)

        accepted_B = torch.zeros_like(batch.lengths_B)
        if draft.nodes:
            inner_BK = joint_BT[:, 1:-1]
            left_BK = (inner_BK[..., None] * target_BTV[:, 1:-1] - draft_BKV[:, 1:]).clamp_(min=0).sum(-1)
            inner_BK = passing(inner_BK, left_BK, meant(draft))
            passing_BK = torch.cat([inner_BK, joint_BT[:, -1:]], dim=1)
            drawn_BK = uniform(
                self._seed, of_this_round(batch)[:, None], batch.positions(0, draft.nodes), Stream.ACCEPT
            )
            places_K = torch.arange(1, draft.nodes + 1, device=accepted_B.device)
            accepted_B = torch.where(drawn_BK <= passing_BK, places_K, 0).amax(1)
        scale_B = joint_BT.gather(1, accepted_B[:, None])[:, 0]
        return acceptance(
            self._seed, batch, draft, accepted_B, residual(draft, accepted_B, target_BTV, draft_BKV, scale_B)
        )


def passing(joint_BJ: torch.Tensor, left_BJ: torch.Tensor, meant_BK: torch.Tensor | None) -> torch.Tensor:
    """Return h_i of the prefixes that are not the whole draft, from p_i and S_i; J = K - 1 of them.

    A prefix after which nothing is drafted is a whole draft, for which h_i is p_i: S_i is nan where Q is no distribution. So is h_i
    where S_i = 0 and p_i = 1.
    """
    passing_BJ = left_BJ / (left_BJ + 1 - joint_BJ)
    passing_BJ = passing_BJ.where(passing_BJ == passing_BJ, joint_BJ)
    return passing_BJ if meant_BK is None else passing_BJ.where(meant_BK[:, 1:], joint_BJ)
