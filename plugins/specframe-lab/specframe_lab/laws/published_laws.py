"""Constants of the laws as they were published, to be compared with fitted ones."""

from __future__ import annotations

import numpy as np

SOURCE = (
    "Scylla (arXiv 2505.07858), as summaries give it; natural logarithms are taken, since the base is not named there"
)
TOKENS = (0.08, 5.05)
"""Acceptance length by a draft's training tokens: slope and constant."""
LAYERS = (0.74, 4.61)
"""Acceptance length by a draft's layers."""
BUDGETS = {1: 477, 4: 125, 16: 37, 64: 14}
"""Nodes of the best tree by batch size."""


def budget_law() -> tuple[float, float]:
    """Return slope and constant of log nodes = a log(batch size) + b, fitted to the published budgets."""
    slope, constant = np.polyfit(np.log(list(BUDGETS)), np.log(list(BUDGETS.values())), 1)
    return float(slope), float(constant)
