"""Speculative sampling by rejection (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specframe.contracts.drafts import Draft, Scores, Verdict
from specframe.contracts.round import Batch
from specframe.contracts.run import Run
from specframe.text.noise import Stream, gumbel, hashed, uniform


class Rejection:
    """Accepts a draft token with probability min(1, p/q) and resamples the first rejected from the residual max(0, p - q)."""

    needs = frozenset({"logits"})
    offers = frozenset({"lossless", "samples"})

    def start(self, run: Run) -> None:
        """Take the seed."""
        self._seed = run.seed

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return a sample from the draft's distribution for the position ``offset`` after each row's end, (B,)."""
        positions_B = batch.positions(offset, 1)[:, 0]
        noise_BV = gumbel(self._seed, of_this_round(batch), positions_B, Stream.DRAFT, logits_BV.shape[-1])
        return (logits_BV + noise_BV).argmax(-1)

    def judge(self, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
        """Return the accepted prefix and a sample from the residual after it (from the target if all are accepted)."""
        target_BTV = scores.logits_BTV.float().softmax(-1)
        draft_BKV = probabilities(draft, target_BTV.shape[-1])
        accepted_B = self._accepted(batch, draft, target_BTV, draft_BKV)
        weights_BV = residual(accepted_B, target_BTV, draft_BKV, torch.ones_like(accepted_B, dtype=torch.float32))
        return verdict(self._seed, batch, draft, accepted_B, weights_BV)

    def _accepted(self, batch: Batch, draft: Draft, target_BTV: torch.Tensor, draft_BKV: torch.Tensor) -> torch.Tensor:
        chance_BK = likelihoods(target_BTV, draft) / likelihoods(draft_BKV, draft)
        drawn_BK = uniform(self._seed, of_this_round(batch)[:, None], batch.positions(0, draft.nodes), Stream.ACCEPT)
        return (drawn_BK < chance_BK).long().cumprod(1).sum(1)


def of_this_round(batch: Batch) -> torch.Tensor:
    """Return a stream of random numbers for each row that is used in this round only, (B,).

    The numbers of rejected positions are not used again in later rounds. A rule that decides on the whole draft has used them
    for its decision, so that they would no longer be independent of the result.
    """
    return hashed(batch.streams_B, batch.lengths_B)


def probabilities(draft: Draft, vocabulary: int) -> torch.Tensor:
    """Return the draft's distributions over the target's vocabulary, (B, K, V).

    A draft without logits was not sampled: its distribution has probability 1 on each proposed token.
    """
    if draft.logits_BNV is None:
        return F.one_hot(draft.tokens_BN, vocabulary).float()
    known = draft.logits_BNV.float().softmax(-1)
    return F.pad(known, (0, vocabulary - known.shape[-1]))


def likelihoods(distributions_BTV: torch.Tensor, draft: Draft) -> torch.Tensor:
    """Return the probability of each draft token, (B, K)."""
    return distributions_BTV[:, : draft.nodes].gather(2, draft.tokens_BN[:, :, None])[:, :, 0]


def residual(
    accepted_B: torch.Tensor, target_BTV: torch.Tensor, draft_BKV: torch.Tensor, scale_B: torch.Tensor
) -> torch.Tensor:
    """Return the weights for sampling the token after the accepted tokens, (B, V).

    After a rejection the weights are max(0, scale * p - q). They are p if the whole draft is accepted, or if rounding makes all
    differences 0.
    """
    rows = torch.arange(len(accepted_B), device=accepted_B.device)
    target_BV = target_BTV[rows, accepted_B]
    padded = F.pad(draft_BKV, (0, 0, 0, 1))
    weights_BV = (scale_B[:, None] * target_BV - padded[rows, accepted_B]).clamp_(min=0)
    return torch.where(weights_BV.sum(-1, keepdim=True) > 0, weights_BV, target_BV)


def verdict(seed: int, batch: Batch, draft: Draft, accepted_B: torch.Tensor, weights_BV: torch.Tensor) -> Verdict:
    """Return the accepted tokens, followed by a token sampled with ``weights_BV``."""
    positions_B = batch.lengths_B + accepted_B
    noise_BV = gumbel(seed, batch.streams_B, positions_B, Stream.TARGET, weights_BV.shape[-1])
    drawn_B = (weights_BV.log() + noise_BV).argmax(-1)
    tokens_BT = F.pad(draft.tokens_BN, (0, 1)).scatter(1, accepted_B[:, None], drawn_B[:, None])
    return Verdict(accepted_B, tokens_BT)
