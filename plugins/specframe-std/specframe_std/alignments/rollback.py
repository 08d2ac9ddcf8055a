"""Cut every row to the batch's minimum (the way out that transformers' issue 32165 discusses)."""

from __future__ import annotations

from specframe.contracts.drafts import Draft, Transfer, Verdict
from specframe.contracts.round import Batch
from specframe_std.alignments.eqspec import EqSpec


class Rollback(EqSpec):
    """Cuts every row to the fewest accepted tokens of the batch, so that nothing becomes ragged: correct, wasteful.

    Each row gains as many tokens as the row that gains fewest. Where more of a draft was accepted than stands, the
    row's last token is the next accepted one, and what came after it is drafted again.
    """

    offers = frozenset({"lossless", "tree", "share"})

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        """Return the transfer of the verdict cut to the batch's minimum, with the caches cut alike."""
        verdict = transfer.verdict
        fewest_B = verdict.accepted_B.amin().expand_as(verdict.accepted_B)
        return super().commit(batch, draft, transfer.of(Verdict(fewest_B, verdict.tokens_BT, verdict.path_BT)))
