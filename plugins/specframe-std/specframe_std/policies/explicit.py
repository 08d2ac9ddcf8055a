"""Drafts as long as those of the same row were accepted lately (EQ-SD: the explicit estimate of quality)."""

from __future__ import annotations

from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.round import Batch
from specframe.model.run import Run
from specframe.value_checks import number, whole
from specframe_std.policies.acceptance_rates import LONGEST, AcceptanceRates
from specframe_std.policies.levels import Levels


class Explicit:
    """Drafts for each row as many tokens as are likely to be accepted, by its own acceptance in the rounds before.

    What was seen of a row fades, and counts together with what was seen of all rows. Every row drafts one token at least, so that
    it is seen when its drafts become better. Of a tree each row drafts as many levels, with their nodes.

    Options:
        maximum: the longest draft, from 1 to 64; the deepest tree.
        least: the least probability that a token is accepted, with all before it, for it to be drafted.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"trees", "deferred"})

    def __init__(self, maximum: int = 8, least: float = 0.4) -> None:
        self._least = number("least", least, 0, 1, above=True)
        self.longest = whole("maximum", maximum, 1, LONGEST)
        self.draft_trees(Budget(self.longest))

    def draft_trees(self, budget: Budget) -> None:
        """Draft up to as many levels, and nodes, as the budget has."""
        self.maximum, self._levels = budget, Levels(budget)
        self._acceptance = AcceptanceRates(self._levels)

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def budget(self, batch: Batch) -> Budget:
        """Return each row's own length."""
        stands_BK = self._acceptance.survival(batch)
        return self._levels.budget((stands_BK >= self._least).sum(1).clip(min=1))

    def observe(self, report: RoundReport) -> None:
        """Note which tokens of each row were accepted."""
        self._acceptance.add(report)
