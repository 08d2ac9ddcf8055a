"""The mask tensor of a forward."""

from __future__ import annotations

import torch

from specframe.types import Placement


def mask(placement: Placement, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Return the additive mask (B, 1, T, S) of one kind of layer: 0 where a query may look.

    Elsewhere it is the least finite number: a padding query that may look nowhere then yields finite nonsense, where minus
    infinity would yield NaN and spread.
    """
    query_BT1 = placement.order_BT.clamp(min=0)[:, :, None]
    key_B1S = placement.key_order_BS[:, None, :]
    hidden_BTS = (key_B1S > query_BT1) | (key_B1S < 0)
    if window is not None:
        hidden_BTS |= key_B1S <= query_BT1 - window
    zeros = torch.zeros((), dtype=dtype, device=hidden_BTS.device)
    return zeros.masked_fill(hidden_BTS, torch.finfo(dtype).min)[:, None]
