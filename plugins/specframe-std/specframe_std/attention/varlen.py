"""Variable-length attention: one flash call over all rows with each row's own length, without a mask.

It can be had on CUDA, in half precision, where a token's slot is its place in its row. Keys and values lie in a slab, or in pages
that a table lists for each row, where torch's kernel takes tables (since 2.12) and pages of this size.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any

import attrs
import torch

from specframe.contracts.attention import Attend, AttentionFacts
from specframe.contracts.cache import ChunkWindow, DenseView, KVView, PagedView, Placement, Window
from specframe.devices import kinds
from specframe.model.attention.interface import gather_slots, in_pages
from specframe_std.attention.kernel_check import HALF, agrees

LARGEST_HEAD = 256
"""Size of the largest head that flash attention takes; sizes are multiples of 8."""


class Packed:
    """Variable-length flash attention, without masks: on CUDA, in half precision, where slots are token indices."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"dense", "paged", "window", "lengths"})
    expects = "CUDA, half precision and a flash kernel for its heads"

    def suits(self, facts: AttentionFacts) -> bool:
        """Return whether the flash kernel takes the model's heads, on CUDA; it takes keys and values of one size."""
        return all(
            shape.key_size == shape.value_size
            and works(facts.device, shape.dtype, facts.heads, shape.heads, shape.key_size)
            for shape in facts.shapes
        )

    def plan(self, placement: Placement) -> Attend:
        """Return how rows lie in the slab, or in their pages."""
        return Packing.of(placement, placement.key_index_BS.shape[1])


@functools.cache
def works(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> bool:
    """Return whether the flash kernel takes these heads on a device and gives what masked attention gives; tried once."""
    if "packed" not in kinds.of(device).kernels or dtype not in HALF or size > LARGEST_HEAD or size % 8:
        return False
    return agrees(Packed(), device, dtype, heads, key_heads, size)


@attrs.frozen(eq=False)
class Packing:
    """How rows lie in a slab whose first ``used_B[i]`` slots hold row i's tokens in order, the T fed ones last.

    Where a row has fewer tokens than are fed, the first of those are padding: they see nothing, and zeros come out.
    """

    used_B: torch.Tensor
    """Tokens per row, the fed ones included, int32."""
    starts_query: torch.Tensor
    """Where each row's queries begin among all queries, and where the last end, (B + 1,) int32."""
    starts_key: torch.Tensor
    """Where each row's slots begin among all slots, and where the last end, (B + 1,) int32."""
    queries: int
    slots: int

    @classmethod
    def of(cls, placement: Placement, slots: int) -> Packing:
        """Return the packing of rows of ``slots`` slots, all of which are handed to :meth:`attend`."""
        used_B, queries = placement.used_B, placement.index_BT.shape[1]
        assert used_B is not None
        rows = torch.arange(len(used_B) + 1, dtype=torch.int32, device=used_B.device)
        return cls(used_B, rows * queries, rows * slots, queries, slots)

    def attend(self, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
        """Attend the last T tokens of each row to all its tokens up to themselves, or to the last ``window`` of those.

        Pages that the kernel does not read are copied into plain tensors.
        """
        if isinstance(view, PagedView):
            _, heads, _, size = query.shape
            if not reads_pages(query.device, query.dtype, heads, view.keys.shape[2], size, view.page):
                view = gather_slots(view, self.slots)
        return self.kernel(query, view, scaling, window)

    def kernel(self, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
        """Attend by the kernel."""
        assert not isinstance(window, ChunkWindow)
        rows, heads, length, size = query.shape
        if isinstance(view, PagedView):
            keys, values, table_BN = view.keys, view.values, view.table_BN.int()
        else:
            (keys, values), table_BN = (one.transpose(1, 2).flatten(0, 1) for one in view), None
        output = flash(
            query.transpose(1, 2).reshape(rows * length, heads, size),
            keys,
            values,
            self,
            scaling,
            -1 if window is None else window - 1,
            table_BN,
        )
        return output.view(rows, length, heads, size)


@functools.cache
def reads_pages(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int, page: int) -> bool:
    """Return whether the flash kernel takes pages of ``page`` slots and gives what masked attention gives; tried once."""
    if _varlen() is None:
        return False
    own = contextvars.Context()  # a forward is under way, and the check is none of its layers
    return own.run(agrees, InPages(page), device, dtype, heads, key_heads, size)


class InPages(Packed):
    """Has the kernel read plain tensors from pages of a size, to try it."""

    def __init__(self, page: int) -> None:
        self._page = page

    def plan(self, placement: Placement) -> Attend:
        """Return this, which knows how rows lie."""
        self._packing = Packing.of(placement, placement.key_index_BS.shape[1])
        return self

    def attend(self, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
        """Attend to a copy of plain tensors in pages."""
        assert isinstance(view, DenseView)
        return self._packing.kernel(query, in_pages(view, self._page), scaling, window)


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    scaling: float | None,
    left: int,
    table_BN: torch.Tensor | None = None,
) -> torch.Tensor:
    """Call torch's variable-length flash attention: a public function where it takes lengths, its operator before that.

    Of the two public functions the one that fills a given tensor makes no other: no state of random numbers in every layer.
    With a table, keys and values are pages (P, page, H, D). Flash attention of pages is wrong where it splits the keys of a row
    (flash-attention 1217, pytorch 194167), so that is switched off.
    """
    lengths = packing.starts_query, packing.starts_key, packing.queries, packing.slots
    if (public := _varlen()) is not None:
        gqa = query.shape[1] != key.shape[-2]
        pages = {} if table_BN is None else {"block_table": table_BN, "num_splits": 1}
        return public(
            torch.empty_like(query),
            query,
            key,
            value,
            *lengths,
            scale=scaling,
            window_size=(left, 0),
            enable_gqa=gqa,
            seqused_k=packing.used_B,
            **pages,
        )
    operator = torch.ops.aten._flash_attention_forward
    edges = {"window_size_left": left, "window_size_right": 0} if left >= 0 else {}
    return operator(query, key, value, *lengths, 0.0, True, False, scale=scaling, seqused_k=packing.used_B, **edges)[0]


@functools.cache
def _varlen() -> Callable[..., Any] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn_out
    except ImportError:  # before torch 2.12, when the other function began to take lengths and pages
        return None
    return varlen_attn_out
