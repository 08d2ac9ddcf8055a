"""The mask tensors of a forward."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from specframe.contracts.cache import Placement


def masks(placement: Placement, windows: Iterable[int | None], dtype: torch.dtype) -> dict[int | None, torch.Tensor]:
    """Return the additive mask (B, 1, T, S) of each sliding window (None: unlimited): 0 where a query may look.

    Elsewhere it is the least finite number: a padding query that may look nowhere then yields finite nonsense, where minus
    infinity would yield NaN and spread.
    """
    query_BT1 = placement.order_BT.clamp(min=0)[:, :, None]
    key_B1S = placement.key_order_BS[:, None, :]
    hidden_BTS = (key_B1S > query_BT1) | (key_B1S < 0)
    zeros = torch.zeros((), dtype=dtype, device=hidden_BTS.device)
    made = {}
    for window in windows:
        beyond_BTS = hidden_BTS if window is None else hidden_BTS | (key_B1S <= query_BT1 - window)
        made[window] = zeros.masked_fill(beyond_BTS, torch.finfo(dtype).min)[:, None]
    return made
