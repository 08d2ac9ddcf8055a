"""Stores for the self-tests of a model before its use."""

from __future__ import annotations

from typing import Any

import torch

from specframe.contracts.cache import DenseView, KVShape, KVView, Placement
from specframe.devices import kinds
from specframe.model.cache_views import in_pages


class Reordered:
    """Hands keys and values back in the order of some slots, strided as a slab's are, and remembers nothing but shapes."""

    def __init__(self, slots: list[int]) -> None:
        self.slots = slots
        self.shapes: dict[int, KVShape] = {}

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> DenseView:
        """Return keys and values (B, H, S, D)."""
        self.shapes[layer] = KVShape(keys.shape[1], keys.shape[-1], values.shape[-1], keys.dtype, keys.device)
        return DenseView(self._in_order(keys), self._in_order(values))

    def _in_order(self, states: torch.Tensor) -> torch.Tensor:
        return states.transpose(1, 2)[:, self.slots].contiguous().transpose(1, 2)


class Scratch:
    """Every slot of a placement's rows, filled with noise, and what is fed in the slots it says; in pages if told their size."""

    def __init__(self, placement: Placement, page: int | None = None) -> None:
        self._page = page
        self._slots_BT, self._slots = placement.slots_BT, placement.key_index_BS.shape[1]
        self._real_BT = placement.index_BT >= 0

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> KVView:
        """Return keys and values of all slots."""
        generator = torch.Generator().manual_seed(layer)
        view = DenseView(self._written(keys, generator), self._written(values, generator))
        return view if self._page is None else in_pages(view, self._page)

    def _written(self, states: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        rows, heads, _fed, size = states.shape
        noise = torch.randn(rows, self._slots, heads, size, generator=generator)
        real_BT, slots_BT = self._real_BT.to(states.device), self._slots_BT.to(states.device)
        spread = states.transpose(1, 2)[real_BT].float().std().cpu() if kinds.of(states.device).values else 1.0
        # noise like the entries of the model's own
        held = (noise * spread).to(states.device, states.dtype)
        held[torch.arange(rows, device=states.device)[:, None], slots_BT] = states.transpose(1, 2)
        return held.transpose(1, 2)


def narrow_windows(config: Any, window: int) -> None:
    """Give the sliding windows and chunks of a twin's configuration another size: few tokens are then more."""
    for name in ("sliding_window", "attention_chunk_size"):
        if getattr(config, name, None) is not None:
            setattr(config, name, window)


def uneven_placement(window: int | None, slots: int, device: torch.device) -> Placement:
    """Return where the last tokens of three rows go whose slots are their places: one of two tokens, one of all slots, one between.

    More tokens are fed than the first row has, more are held than the window, and slots after a row's end hold noise.

    Args:
        window: of how many tokens the narrowest window or chunk is, or None if there is none.
        slots: at most that many are held.
        device: of the model.
    """
    longest = min(slots - 1, max(12, 2 * (window or 0)))
    used_B = torch.tensor([2, longest, longest // 2 + 1], device=device)
    index_BT = used_B[:, None] - 4 + torch.arange(4, device=device)
    key_index_1S = torch.arange(longest + 1, device=device)[None]
    slots_BT = index_BT.where(index_BT >= 0, longest)  # padding goes where no row has a token
    return Placement(index_BT.clamp(min=0), slots_BT, index_BT, key_index_1S, in_order=True)
