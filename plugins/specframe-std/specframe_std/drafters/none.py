"""Plain decoding through the same loop."""

from __future__ import annotations

from specframe.contracts.drafts import Draft
from specframe.contracts.round import Batch
from specframe.forward.run import Run


class NoDrafter:
    """Proposes nothing: plain decoding, the baseline everything is compared with."""

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def propose(self, batch: Batch, draft_length: int) -> Draft:
        """Return an empty draft."""
        return Draft(batch.tokens_BS[:, :0])
