"""EXSPEC: realign only when rows of different lengths have to share a batch (arXiv 2510.22876)."""

from __future__ import annotations

from specframe.contracts.drafts import Draft, Verdict
from specframe.contracts.round import Batch
from specframe_std.alignments.eqspec import EqSpec


class ExSpec(EqSpec):
    """Leaves rows where they are after a round; rows of equal length then form a batch with nothing to move.

    Same layout as ``eqspec``: only the moment of the realignment differs. It happens when the next batch is known, and a batch
    of equal lengths needs none.
    """

    scheduler = "same-length"

    def commit(self, batch: Batch, draft: Draft, verdict: Verdict) -> Verdict:
        """Drop rejected tokens; move nothing."""
        accepted, _ = verdict.host()
        self._target.keep(batch, batch.lengths + accepted)
        return verdict
