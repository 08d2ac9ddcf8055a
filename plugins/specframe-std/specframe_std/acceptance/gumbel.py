"""Drafter-invariant sampling: draft and target share their noise (Daliri et al. 2024)."""

from __future__ import annotations

import torch

from specframe.contracts.drafts import Acceptance, Draft, Scores
from specframe.contracts.round import Batch
from specframe.model.run import Run
from specframe_std.noise import Stream, gumbel
from specframe_std.trees.children import likeliest
from specframe_std.trees.paths import walk


class Gumbel:
    """Adds the same Gumbel noise to target and draft logits and takes the most likely token of each.

    The noise is keyed by seed, sequence and position, so the output equals plain sampling with the same seed, token for token,
    for any drafter, draft length, tree, batch or alignment. A draft token is accepted if it is the target's choice.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset(
        {"lossless", "samples", "draft-invariant", "tree", "distinct", "independent", "prunable", "deferred"}
    )

    def start(self, run: Run) -> None:
        """Take the seed."""
        self._seed = run.seed

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the most likely token under the noise of the position ``offset`` after each row's end, (B,)."""
        return (logits_BV + self._noise(batch, offset, 1, logits_BV.shape[-1])[:, 0]).argmax(-1)

    def siblings(
        self, batch: Batch, offset: int, logits_BFV: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the most likely tokens under the noise of their position, (B, F, count), and their scores."""
        return likeliest(logits_BFV + self._noise(batch, offset, 1, logits_BFV.shape[-1]), count)

    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        """Return the longest path of the target's choices, and its choice after it."""
        logits_BTV = scores.logits_BTV
        if draft.parents_BN is not None:
            return walk(draft, lambda depth, place_B1: self._chosen(batch, depth, logits_BTV, place_B1))
        noise_BTV = self._noise(batch, 0, logits_BTV.shape[1], logits_BTV.shape[2])
        choices_BT = (logits_BTV.float() + noise_BTV).argmax(-1)
        agrees_BK = choices_BT[:, :-1] == draft.tokens_BN
        return Acceptance(agrees_BK.long().cumprod(1).sum(1), choices_BT)

    def _chosen(self, batch: Batch, depth: int, logits_BTV: torch.Tensor, place_B1: torch.Tensor) -> torch.Tensor:
        """Return the target's choice at one place of each row, (B, 1)."""
        vocabulary = logits_BTV.shape[-1]
        logits_B1V = logits_BTV.gather(1, place_B1[..., None].expand(-1, -1, vocabulary))
        return (logits_B1V.float() + self._noise(batch, depth, 1, vocabulary)).argmax(-1)

    def _noise(self, batch: Batch, offset: int, count: int, vocabulary: int) -> torch.Tensor:
        positions_BT = batch.positions(offset, count)
        return gumbel(self._seed, batch.streams_B[:, None], positions_BT, Stream.TARGET, vocabulary)
