"""The mask tensors of a forward."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.nn.functional as F

from specframe.contracts.attention import AttentionFacts
from specframe.contracts.cache import ChunkWindow, Placement, Window
from specframe.devices import kinds
from specframe.devices.kinds import constant

FEW = 16
"""Tokens per row up to which masks of even rows are parts of one that is kept as long as the process lives: those of drafts, not
those of prompts, which are large."""

_STAIRCASES: dict[tuple[Window, torch.dtype, torch.device], torch.Tensor] = {}
"""The largest mask so far of each window."""


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
    width, slots, device = placement.index_BT.shape[1], placement.key_index_BS.shape[1], placement.index_BT.device
    if placement.even and width <= FEW and ChunkWindow not in map(type, windows):
        rows = placement.index_BT.shape[0]
        made = {window: aligned(staircase(width, slots, window, dtype, device)) for window in windows}
        return made if rows == 1 else {window: mask.expand(rows, -1, -1, -1) for window, mask in made.items()}
    least = constant((torch.finfo(dtype).min,), device, dtype)
    seen_within = placement.seen_within(windows)
    return {window: aligned(least.masked_fill(seen, 0)[:, None]) for window, seen in seen_within.items()}


def aligned(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask that attention's kernels of its device can read, which take several numbers at once.

    torch looks at the distance of a mask's rows, and copies the mask for every layer where that is not aligned. It does not look
    where the mask begins, and the kernel then fails with a misaligned address.
    """
    words = kinds.of(mask.device).words
    if words == 1 or not (mask.storage_offset() % words or any(stride % words for stride in mask.stride()[:-1])):
        return mask
    return F.pad(mask, (0, -mask.shape[-1] % words))[..., : mask.shape[-1]]


def staircase(width: int, slots: int, window: Window, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the mask (1, 1, T, S) of rows whose last T (``width``) of S slots are fed.

    It is the lower right corner of any larger one, of which one is kept: a power of two high and wide.
    """
    kept = _STAIRCASES.get((window, dtype, device))
    if kept is None or kept.shape[2] < width or kept.shape[3] < slots:
        before = (1, 1) if kept is None else kept.shape[2:]
        kept = corner(max(power_of_two(width), before[0]), max(power_of_two(slots), before[1]), window, dtype, device)
        _STAIRCASES[window, dtype, device] = kept
    return kept[..., kept.shape[2] - width :, kept.shape[3] - slots :]


@torch.inference_mode(False)
def corner(width: int, slots: int, window: Window, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Make the mask of :func:`staircase`."""
    assert not isinstance(window, ChunkWindow), (
        "a chunk begins at a token index, and not a number of tokens before a query"
    )
    ahead_TS = torch.arange(slots, device=device) - torch.arange(slots - width, slots, device=device)[:, None]
    seen_TS = ahead_TS <= 0
    if window is not None:
        seen_TS &= ahead_TS > -window
    least = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
    return least.masked_fill(seen_TS, 0)[None, None]


def power_of_two(number: int) -> int:
    """Return the least power of two that is not less."""
    return 1 << (number - 1).bit_length()
