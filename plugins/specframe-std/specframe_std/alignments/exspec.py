"""EXSPEC: realign only when rows of different lengths have to share a batch (arXiv 2510.22876)."""

from __future__ import annotations

from specframe.contracts.drafts import Draft, Transfer
from specframe.contracts.round import Batch
from specframe_std.alignments.eqspec import EqSpec


class ExSpec(EqSpec):
    """Does not move rows after a round. Rows of equal length then form a batch without realignment.

    The layout is that of ``eqspec``; only the moment of realignment differs. Rows are realigned when the next batch is known. A
    batch of equal lengths needs no realignment.
    """

    scheduler = "same-length"

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        """Return the acceptance result as it is: rejected tokens are dropped, and only a tree's accepted path is moved."""
        return transfer
