"""Plain decoding through the same loop."""

from __future__ import annotations

from specframe.contracts.drafts import Budget, Draft, Scores
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch
from specframe.model.run import Run


class NoDrafter:
    """Proposes nothing: plain decoding, the baseline everything is compared with."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain", "deferred", "captured", "plain"})

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return an empty draft."""
        return Draft(batch.tokens_BS[:, :0])

    draw = propose

    def prepare(self, batch: Batch, budget: Budget) -> int:
        """Nothing to prepare, for any batch."""
        return 0

    def keep(self, batch: Batch, draft: Draft, scores: Scores) -> None:
        """Nothing to keep."""

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
