"""The mask tensors of a forward."""

from __future__ import annotations

import functools
from collections.abc import Collection

import torch

from specframe.contracts.attention import AttentionFacts
from specframe.contracts.cache import Chunk, Placement, Window
from specframe.devices.kinds import constant

FEW = 64
"""Tokens per row up to which masks of even rows are kept for later forwards: those of drafts, and not those of prompts, which are
large and seldom of the same size."""


class Masked:
    """Attends by mask tensors, on any device and in any precision."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"dense", "tree", "window", "chunk", "masks"})
    expects = "any model"

    def suits(self, facts: AttentionFacts) -> bool:
        """Every model takes mask tensors, or it cannot be decoded with at all."""
        return True

    def plan(self, placement: Placement) -> None:
        """Leave the mask to the core."""


def masks(placement: Placement, windows: Collection[Window], dtype: torch.dtype) -> dict[Window, torch.Tensor]:
    """Return the additive mask (B, 1, T, S) of each window: 0 where a query sees a slot.

    Elsewhere it is the least finite number: a padding query that may look nowhere then yields finite nonsense, where minus
    infinity would yield NaN and spread.
    """
    width, slots, device = placement.order_BT.shape[1], placement.key_order_BS.shape[1], placement.order_BT.device
    if placement.even and width <= FEW and not any(isinstance(window, Chunk) for window in windows):
        most = 1 << (slots - 1).bit_length()
        rows = placement.order_BT.shape[0]
        made: dict[Window, torch.Tensor] = {
            window: staircase(width, most, window, dtype, device)[..., most - slots :] for window in windows
        }
        return made if rows == 1 else {window: mask.expand(rows, -1, -1, -1) for window, mask in made.items()}
    least = constant((torch.finfo(dtype).min,), device, dtype)
    return {window: least.masked_fill(seen, 0)[:, None] for window, seen in placement.seen_within(windows).items()}


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def staircase(width: int, slots: int, window: int | None, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the mask (1, 1, T, S) of rows whose last T of S slots are fed; its last columns are the mask of fewer slots.

    Args:
        width: T.
        slots: S.
        window: tokens that a query sees, itself included; None: all.
        dtype: of the model.
        device: of the model.
    """
    ahead_TS = torch.arange(slots, device=device) - torch.arange(slots - width, slots, device=device)[:, None]
    seen_TS = ahead_TS <= 0
    if window is not None:
        seen_TS &= ahead_TS > -window
    least = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
    return least.masked_fill(seen_TS, 0)[None, None]
