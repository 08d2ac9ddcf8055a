"""The same budget every round."""

from __future__ import annotations

from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.round import Batch
from specframe.model.run import Run
from specframe.value_checks import whole


class FixedLength:
    """Drafts the same number of tokens every round.

    Options:
        length: tokens drafted per round, at least 1; for a tree, its depth. For plain decoding take the drafter "none".
        nodes: nodes of a tree, at least as many; without it as many as length says.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"steady", "deferred"})

    def __init__(self, length: int = 5, nodes: int | None = None) -> None:
        length = whole("length", length, 1)
        self.maximum = Budget(length, length if nodes is None else whole("nodes", nodes, length))

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def budget(self, batch: Batch) -> Budget:
        """Return the fixed budget."""
        return self.maximum

    def observe(self, report: RoundReport) -> None:
        """Nothing to learn."""
