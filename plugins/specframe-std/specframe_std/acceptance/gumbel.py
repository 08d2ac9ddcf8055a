"""Drafter-invariant sampling: draft and target share their noise (Daliri et al. 2024)."""

from __future__ import annotations

import torch

from specframe.contracts.drafts import Draft, Scores, Verdict
from specframe.contracts.round import Batch
from specframe.contracts.run import Run
from specframe.text.noise import Stream, gumbel


class Gumbel:
    """Adds the same Gumbel noise to target and draft logits and takes the most likely token of each.

    The noise is keyed by seed, sequence and position, so the output equals plain sampling with the same seed, token for token,
    for any drafter, draft length, batch or alignment. A draft token is accepted if both models choose it.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"lossless", "samples", "draft-invariant"})

    def start(self, run: Run) -> None:
        """Take the seed."""
        self._seed = run.seed

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the most likely token under the noise of the position ``offset`` after each row's end, (B,)."""
        return (logits_BV + self._noise(batch, offset, 1, logits_BV.shape[-1])[:, 0]).argmax(-1)

    def judge(self, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
        """Return the longest prefix on which both models agree, and the target's choice after it."""
        logits_BTV = scores.logits_BTV
        noise_BTV = self._noise(batch, 0, logits_BTV.shape[1], logits_BTV.shape[2])
        choices_BT = (logits_BTV.float() + noise_BTV).argmax(-1)
        agrees_BK = choices_BT[:, :-1] == draft.tokens_BN
        return Verdict(agrees_BK.long().cumprod(1).sum(1), choices_BT)

    def _noise(self, batch: Batch, offset: int, count: int, vocabulary: int) -> torch.Tensor:
        positions_BT = batch.positions(offset, count)
        return gumbel(self._seed, batch.streams_B[:, None], positions_BT, Stream.TARGET, vocabulary)
