"""The mask tensors of a forward."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from specframe.contracts.cache import Placement
from specframe.contracts.roles import AttentionFacts


class Masked:
    """Attends by mask tensors, on any device and in any precision."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"dense", "tree", "window", "masks"})
    expects = "any model"

    def suits(self, facts: AttentionFacts) -> bool:
        """Every model takes mask tensors, or it cannot be decoded with at all."""
        return True

    def plan(self, placement: Placement) -> None:
        """Leave the mask to the core."""


def masks(placement: Placement, windows: Iterable[int | None], dtype: torch.dtype) -> dict[int | None, torch.Tensor]:
    """Return the additive mask (B, 1, T, S) of each sliding window (None: unlimited): 0 where a query sees a slot.

    Elsewhere it is the least finite number: a padding query that may look nowhere then yields finite nonsense, where minus
    infinity would yield NaN and spread.
    """
    least = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=placement.order_BT.device)
    return {window: least.masked_fill(seen, 0)[:, None] for window, seen in placement.seen_within(windows).items()}
