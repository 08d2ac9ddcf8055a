"""Drafts that are as long as they may be, every round: what takes the most memory."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.round import Batch
from specframe.engine.budgets import limit_depths
from specframe.model.padding_free import fullest
from specframe.model.run import Run


class Looks:
    """A stand-in for a rule that ends drafts by the distribution of each token: it takes as much memory, and ends none."""

    def goes_on(self, batch: Batch, place: int, logits_BV: torch.Tensor) -> np.ndarray:
        """Return that all rows draft a token."""
        logits_BV = logits_BV.float()
        logs_BV = logits_BV - logits_BV.logsumexp(-1, keepdim=True)
        (logs_BV.exp() * logs_BV.clamp(min=-100.0)).sum(-1)  # the entropy
        return np.ones(len(batch), dtype=bool)


class Steady:
    """A draft-length policy that drafts as much as it may, every round.

    Args:
        maximum: the most.
        stopping: a rule that is asked before each token of a chain, or None if there is none.
        leaves_out: returns whether forwards leave out the padding of a number of token slots with a number of tokens.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"steady"})

    def __init__(
        self,
        maximum: Budget,
        stopping: Looks | None,
        leaves_out: Callable[[int, int], bool] = lambda places, tokens: False,
    ) -> None:
        self.maximum, self._stopping, self._leaves_out = maximum, stopping, leaves_out
        self.uneven = False
        """Whether rows draft less, as little less as leaves out padding: the last ones shorter chains, or no tree."""

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def budget(self, batch: Batch) -> Budget:
        """Return the most there may be."""
        most = attrs.evolve(self.maximum, stopping=self._stopping)
        places = len(batch) * (most.nodes + 1)
        if not self.uneven or (tokens := fullest(places, self._leaves_out)) <= len(batch):
            return most
        most_B = np.clip(tokens - len(batch) - np.arange(len(batch)) * most.nodes, 0, most.nodes)
        depths_B = most_B if most.nodes == most.depth else np.where(most_B == most.nodes, most.depth, 0)
        return limit_depths(most, depths_B)

    def observe(self, report: RoundReport) -> None:
        """Nothing to learn."""
