"""Drafts that are no longer than memory suffices for."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from specframe.contracts.drafts import Budget
from specframe.contracts.roles import BudgetPolicy
from specframe.contracts.round import Batch
from specframe.plugins.compose import Composition


class Capped:
    """A draft-length policy whose drafts are no longer, and have no more nodes, than memory suffices for.

    Args:
        policy: decides how much of that is drafted.
        maximum: the most.
    """

    def __init__(self, policy: BudgetPolicy, maximum: Budget) -> None:
        self._policy, self.maximum = policy, maximum

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # there is no policy yet to ask
            raise AttributeError(name)
        return getattr(self._policy, name)

    def budget(self, batch: Batch) -> Budget:
        """Return the policy's budget, as far as there is memory for it."""
        found, most = self._policy.budget(batch), self.maximum
        own: dict[str, Any] = {}
        if found.depths_B is not None:
            own["depths_B"] = np.minimum(found.depths_B, most.depth)
        if found.nodes_B is not None:
            own["nodes_B"] = np.minimum(found.nodes_B, most.nodes)
        return attrs.evolve(found, depth=min(found.depth, most.depth), nodes=min(found.nodes, most.nodes), **own)


def capped(use: Composition, most: Budget) -> Composition:
    """Return the strategies of a run with drafts within a budget."""
    return use if most.nodes >= use.policy.maximum.nodes else attrs.evolve(use, policy=Capped(use.policy, most))
