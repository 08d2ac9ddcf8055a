"""Cut every row to the batch's minimum (the way out that transformers' issue 32165 discusses)."""

from __future__ import annotations

from specframe.contracts.drafts import Acceptance, Draft, Transfer
from specframe.contracts.round import Batch
from specframe_std.alignments.eqspec import EqSpec


class Rollback(EqSpec):
    """Cuts every row to the fewest accepted tokens of the batch, so that nothing becomes ragged: correct, wasteful.

    Each row gains as many tokens as the row that gains fewest. Where more of a draft was accepted than is committed, the row's last
    token is the next accepted one, and what came after it is drafted again.
    """

    offers = frozenset({"lossless", "tree", "share"})

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        """Return the transfer of the acceptance result cut to the batch's minimum, with the caches cut alike."""
        acceptance = transfer.acceptance
        fewest_B = acceptance.accepted_B.amin().expand_as(acceptance.accepted_B)
        return super().commit(batch, draft, transfer.of(Acceptance(fewest_B, acceptance.tokens_BT, acceptance.path_BT)))
