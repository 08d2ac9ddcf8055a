"""Decode attention: few queries a row over long rows, by a Triton kernel that reads each live key once.

All query heads that share a key head read its keys together, no slot after a row's end or before a window is read, and the keys of
few rows are split over the device. Prompts, which have many queries a row, are left to variable-length attention if available.
"""

from __future__ import annotations

import contextvars
import functools
from importlib.util import find_spec

import attrs
import torch

from specframe.contracts.attention import Attend, AttentionFacts
from specframe.contracts.cache import ChunkWindow, DenseView, KVView, Placement, Window
from specframe.devices import kinds
from specframe.model.attention.interface import in_pages
from specframe.model.attention.masks import FEW
from specframe_std.attention import varlen
from specframe_std.attention.kernel_check import agrees

LARGEST_HEAD = 256
"""Size of the largest head: a block of larger ones leaves no room for a second."""
PAGE = 16
"""Slots of the pages that the kernel is tried on."""


class Decode:
    """A Triton kernel for few tokens a row, which reads each live key once: on CUDA, where slots are places."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"dense", "paged", "window", "lengths"})
    expects = f"CUDA, the package triton, and heads of up to {LARGEST_HEAD} numbers"

    def suits(self, facts: AttentionFacts) -> bool:
        """Return whether the kernel takes the model's heads. Unasked, prompts need variable-length attention."""
        return (facts.asked or varlen.Packed().suits(facts)) and all(
            works(facts.device, shape.dtype, facts.heads, shape.heads, max(shape.key_size, shape.value_size))
            for shape in facts.shapes
        )

    def plan(self, placement: Placement) -> Attend:
        """Return how long rows are and, for more tokens than a round has, their variable-length layout."""
        used_B, width = placement.used_B, placement.index_BT.shape[1]
        assert used_B is not None
        packing = varlen.Packing.of(placement, placement.key_index_BS.shape[1]) if width > FEW else None
        return Decoding(used_B, packing)


@attrs.frozen(eq=False)
class Decoding:
    """The attention of a forward, whose rows hold their tokens in order."""

    used_B: torch.Tensor
    """Tokens per row, the fed ones included, int32."""
    packing: varlen.Packing | None
    """The same as variable-length attention has it, or None for few tokens a row."""

    def attend(self, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
        """Attend the last T tokens of each row to all its tokens up to themselves, or to the last ``window`` of those."""
        assert not isinstance(window, ChunkWindow)
        if self.packing is not None and packs(query, view):
            return self.packing.attend(query, view, scaling, window)
        from specframe_std.attention.decode_kernel import attended

        return attended(query, view, self.used_B, scaling, window)


def packs(query: torch.Tensor, view: KVView) -> bool:
    """Return whether variable-length attention takes these heads; its kernel is tried once, as a part of no forward."""
    key_heads, own = view.keys.shape[1 if isinstance(view, DenseView) else 2], contextvars.Context()
    same, shape = view.keys.shape == view.values.shape, (query.shape[1], key_heads, query.shape[3])
    return same and own.run(varlen.works, query.device, query.dtype, *shape)


class InPages(Decode):
    """Has the kernel read plain tensors from pages, to try it."""

    def plan(self, placement: Placement) -> Attend:
        """Return this, which knows how rows lie."""
        self._plan = super().plan(placement)
        return self

    def attend(self, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
        """Attend to a copy of plain tensors in pages."""
        assert isinstance(view, DenseView)
        return self._plan.attend(query, in_pages(view, PAGE), scaling, window)


@functools.cache
def works(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> bool:
    """Return whether the kernel compiles for these heads and equals masked attention, in rows and in pages; tried once."""
    if "triton" not in kinds.of(device).kernels or find_spec("triton") is None or size > LARGEST_HEAD:
        return False
    return all(agrees(backend, device, dtype, heads, key_heads, size) for backend in (Decode(), InPages()))
