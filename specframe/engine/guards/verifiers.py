"""Guards of verifiers and acceptance rules."""

from __future__ import annotations

from typing import Any

import torch

from specframe.contracts.drafts import Draft, Numbers, Scores, Transfer, Verdict
from specframe.contracts.round import Batch
from specframe.engine.error_words import value_words
from specframe.engine.guards.base import Guard, on_host, readable
from specframe.engine.guards.numbers import unlike_draft, verdict_fault


class GuardedVerifier(Guard):
    """A verifier, guarded."""

    kind = "verifier"

    def score(self, batch: Batch, draft: Draft) -> Scores:
        """Return the verifier's scores after checking them; logits of a batch that leaves something to read are not looked at."""
        scores = self._with_batch("score", batch, draft)
        if not isinstance(scores, Scores):
            self._refuse("score", "a specframe.contracts.drafts.Scores", value_words(scores))
        if not batch.left:
            shape = (len(batch), draft.nodes + 1)
            self._floats("score", "logits_BTV", scores.logits_BTV, shape, "(B, N + 1, V)", batch.tokens_BS)
        return scores


class GuardedRule(Guard):
    """An acceptance rule, guarded."""

    kind = "acceptance rule"

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the rule's choice after checking it."""
        chosen_B = self._with_batch("choose", batch, offset, logits_BV)
        rows = logits_BV.shape[0]
        right = getattr(chosen_B, "shape", None) == (rows,)
        self._tensor("choose", "token ids", chosen_B, f"(B,) = ({rows},)", right, logits_BV)
        return chosen_B

    def judge(self, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
        """Return the rule's verdict after checking it."""
        verdict = self._with_batch("judge", batch, draft, scores)
        self._verdict("judge", verdict, batch, draft)
        if readable(verdict.tokens_BT):
            accepted, tokens, path = verdict.accepted_B.numpy(), verdict.tokens_BT.numpy(), on_host(verdict.path_BT)
            drafted, parents = draft.tokens_BN.numpy(), on_host(draft.parents_BN)
            self._check(draft, accepted, tokens, path, drafted, parents, scores.logits_BTV.shape[-1])
        return verdict

    def check_numbers(self, transfer: Transfer, numbers: Numbers) -> None:
        """Check the numbers of the rule's verdict, which have come from a device."""
        tokens, path, drafted = numbers.judged_tokens, numbers.judged_path, numbers.drafted
        self._check(transfer.draft, numbers.judged, tokens, path, drafted, numbers.parents, self._vocabulary)

    def _check(
        self, draft: Draft, accepted: Any, tokens: Any, path: Any, drafted: Any, parents: Any, vocabulary: int
    ) -> None:
        fault = verdict_fault(draft, accepted, tokens, path, parents, vocabulary)
        if fault is None and draft.nodes:
            fault = unlike_draft(accepted, tokens, path, drafted)
        self._sound("judge", fault)
