"""A draft-length policy that goes through draft lengths by turns."""

from __future__ import annotations

import itertools

import numpy as np
from specframe_std.policies.fixed_length import FixedLength

from specframe.contracts.drafts import Budget
from specframe.contracts.round import Batch


class ByTurns(FixedLength):
    """Draft lengths by turns; where one is a tuple, each row's own. ``deferred``: rounds may be deferred."""

    def __init__(self, *depths: int | tuple[int, ...], deferred: bool = False) -> None:
        super().__init__(max(one if isinstance(one, int) else max(one) for one in depths))
        self.offers = frozenset({"deferred"} if deferred else ())
        self._turns = itertools.cycle(depths)

    def budget(self, batch: Batch) -> Budget:
        """Return the next one."""
        depth = next(self._turns)
        if isinstance(depth, int):
            return Budget(depth)
        own_B = np.resize(depth, len(batch))
        return Budget(int(own_B.max()), depths_B=own_B)
