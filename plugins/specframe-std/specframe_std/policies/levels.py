"""The levels of drafts that are chains or trees, and their nodes.

Tensor names carry their shape: B rows.
"""

from __future__ import annotations

import attrs
import numpy as np

from specframe.contracts.drafts import Budget


@attrs.frozen
class Levels:
    """Drafts by their levels: a chain has one node in each, a tree more.

    A tree of fewer levels has as many fewer nodes, so that what a level costs does not depend on how many there are.
    """

    most: Budget
    """The deepest draft, with its nodes."""
    nodes_D: np.ndarray = attrs.field(init=False, eq=False)
    """The nodes of drafts by their depth, from 0 on."""

    @nodes_D.default
    def _in_proportion(self) -> np.ndarray:
        depths_D = np.arange(self.most.depth + 1)
        return np.maximum(depths_D, np.rint(depths_D * self.most.nodes / self.most.depth)).astype(int)

    @property
    def width(self) -> float:
        """The nodes of a level."""
        return self.most.nodes / self.most.depth

    def of(self, nodes_B: np.ndarray) -> np.ndarray:
        """Return the levels of drafts with ``nodes_B`` nodes, (B,)."""
        nodes_B = np.minimum(nodes_B, self.most.nodes)
        return nodes_B if self.most.nodes == self.most.depth else np.searchsorted(self.nodes_D, nodes_B)

    def budget(self, depths_B: np.ndarray) -> Budget:
        """Return the budget of rows whose drafts have ``depths_B`` levels."""
        deepest = int(depths_B.max())
        if self.most.nodes == self.most.depth:
            return Budget(deepest, depths_B=depths_B)
        nodes_B = self.nodes_D[depths_B]
        return Budget(deepest, int(nodes_B.max()), depths_B=depths_B, nodes_B=nodes_B)
