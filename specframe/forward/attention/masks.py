"""The mask tensors of a forward."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from specframe.contracts.cache import Placement


def masks(placement: Placement, windows: Iterable[int | None], dtype: torch.dtype) -> dict[int | None, torch.Tensor]:
    """Return the additive mask (B, 1, T, S) of each sliding window (None: unlimited): 0 where a query sees a slot.

    Elsewhere it is the least finite number: a padding query that may look nowhere then yields finite nonsense, where minus
    infinity would yield NaN and spread.
    """
    least = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=placement.order_BT.device)
    return {window: least.masked_fill(placement.seen(window), 0)[:, None] for window in windows}
