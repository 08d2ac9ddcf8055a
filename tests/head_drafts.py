"""Which of a head's draft tokens are right, and how many it drafts, as tests want it."""

from __future__ import annotations

import itertools

from specframe_std.policies.fixed_length import FixedLength

from specframe.contracts.drafts import Budget
from specframe.contracts.round import Batch


def in_runs(place: int) -> bool:
    """Return whether the token at a place is right: runs of none to five."""
    return place % 7 not in (0, 3) and place % 5 != 4


class Depths(FixedLength):
    """Draft lengths by turns, none among them; at full length it is a tree if there are trees."""

    offers = frozenset({"deferred", "trees"})

    def __init__(self, *turns: int) -> None:
        super().__init__(3)
        self.longest, self._turns = 3, itertools.cycle(turns or (3, 2, 0, 0, 3))

    def draft_trees(self, budget: Budget) -> None:
        """Take the tree."""
        self.maximum = budget

    def budget(self, batch: Batch) -> Budget:
        """Return the next one."""
        depth = next(self._turns)
        return self.maximum if depth == self.maximum.depth else Budget(depth)
