"""Guards of verifiers and acceptance rules."""

from __future__ import annotations

import torch

from specframe.contracts.drafts import Draft, Scores, Verdict
from specframe.contracts.round import Batch
from specframe.engine.blame import got
from specframe.engine.guards.guard import Guard


class GuardedVerifier(Guard):
    """A verifier, guarded."""

    kind = "verifier"

    def score(self, batch: Batch, draft: Draft) -> Scores:
        """Return the verifier's scores after checking them; logits of a batch that leaves something to read are not looked at."""
        scores = self._with_batch("score", batch, draft)
        if not isinstance(scores, Scores):
            self._refuse("score", "a specframe.contracts.drafts.Scores", got(scores))
        if not batch.left:
            self._floats("score", "logits_BTV", scores.logits_BTV, (len(batch), draft.nodes + 1), "(B, N + 1, V)")
        return scores


class GuardedRule(Guard):
    """An acceptance rule, guarded."""

    kind = "acceptance rule"

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the rule's choice after checking it."""
        chosen_B = self._with_batch("choose", batch, offset, logits_BV)
        rows = len(logits_BV)
        right = getattr(chosen_B, "shape", None) == (rows,)
        self._tensor("choose", "token ids", chosen_B, f"(B,) = ({rows},)", right, logits_BV)
        return chosen_B

    def judge(self, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
        """Return the rule's verdict after checking it."""
        verdict = self._with_batch("judge", batch, draft, scores)
        self._verdict("judge", verdict, batch, draft, scores.logits_BTV.shape[-1])
        return verdict
