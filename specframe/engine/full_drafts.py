"""Drafts that are as long as they may be, every round: what takes the most memory."""

from __future__ import annotations

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.round import Batch
from specframe.contracts.run import Run
from specframe.engine.budgets import limit_depths


class Looks:
    """Stands for a rule that ends drafts by the distribution of each token: it takes what such a look does, and ends none."""

    def goes_on(self, batch: Batch, place: int, logits_BV: torch.Tensor) -> np.ndarray:
        """Return that all rows draft a token."""
        logits_BV = logits_BV.float()
        logs_BV = logits_BV - logits_BV.logsumexp(-1, keepdim=True)
        (logs_BV.exp() * logs_BV.clamp(min=-100.0)).sum(-1)  # the entropy
        return np.ones(len(batch), dtype=bool)


class Steady:
    """A draft-length policy that drafts as much as it may, every round.

    Args:
        maximum: so much.
        stopping: a rule that is asked before each token of a chain; None: there is none.
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()

    def __init__(self, maximum: Budget, stopping: Looks | None) -> None:
        self.maximum, self._stopping = maximum, stopping
        self.uneven = False
        """Whether every other row drafts less than that, so that there is filler: half of a chain, no tree."""

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def budget(self, batch: Batch) -> Budget:
        """Return the most there may be."""
        most = attrs.evolve(self.maximum, stopping=self._stopping)
        if not self.uneven:
            return most
        less = (most.depth - 1) // 2 if most.nodes == most.depth else 0
        return limit_depths(most, np.where(np.arange(len(batch)) % 2, less, most.depth))

    def observe(self, report: RoundReport) -> None:
        """Nothing to learn."""
