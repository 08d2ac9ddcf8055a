"""Packed attention: one variable-length flash call over a slab with each row's own length, without a mask.

It can be had on CUDA, in half precision, where a token's slot is its place in its row.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import attrs
import torch

from specframe.contracts.attention import AttentionFacts
from specframe.contracts.cache import Chunk, Dense, KVView, Placement, Window
from specframe.devices import kinds
from specframe.forward.attention.kernel_trial import HALF, agrees

LARGEST_HEAD = 256
"""Size of the largest head that flash attention takes; sizes are multiples of 8."""


class Packed:
    """Variable-length flash attention, without masks: on CUDA, in half precision, where slots are places."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"dense", "window", "lengths"})
    expects = "CUDA, half precision and a flash kernel for its heads"

    def suits(self, facts: AttentionFacts) -> bool:
        """Return whether the flash kernel takes the model's heads, on CUDA; it takes keys and values of one size."""
        return all(
            shape.key_size == shape.value_size
            and works(facts.device, shape.dtype, facts.heads, shape.heads, shape.key_size)
            for shape in facts.shapes
        )

    def plan(self, placement: Placement) -> Packing:
        """Return how rows lie in the slab."""
        return Packing.of(placement, placement.key_order_BS.shape[1])


@functools.cache
def works(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> bool:
    """Return whether the flash kernel takes these heads on a device and agrees with masked attention; tried once."""
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
        used_B, queries = placement.used_B, placement.order_BT.shape[1]
        assert used_B is not None
        rows = torch.arange(len(used_B) + 1, dtype=torch.int32, device=used_B.device)
        return cls(used_B, rows * queries, rows * slots, queries, slots)

    def attend(self, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
        """Attend the last T tokens of each row to all its tokens up to themselves, or to the last ``window`` of those."""
        assert isinstance(view, Dense)
        assert not isinstance(window, Chunk)
        rows, heads, length, size = query.shape
        output = flash(
            query.transpose(1, 2).reshape(rows * length, heads, size),
            view.keys.transpose(1, 2).flatten(0, 1),
            view.values.transpose(1, 2).flatten(0, 1),
            self,
            scaling,
            -1 if window is None else window - 1,
        )
        return output.view(rows, length, heads, size)


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    scaling: float | None,
    left: int,
) -> torch.Tensor:
    """Call torch's variable-length flash attention: a public function where it takes lengths, its operator before that."""
    lengths = packing.starts_query, packing.starts_key, packing.queries, packing.slots
    if (public := _varlen()) is not None:
        gqa = query.shape[1] != key.shape[1]
        return public(
            query,
            key,
            value,
            *lengths,
            scale=scaling,
            window_size=(left, 0),
            enable_gqa=gqa,
            seqused_k=packing.used_B,
        )
    operator = torch.ops.aten._flash_attention_forward
    edges = {"window_size_left": left, "window_size_right": 0} if left >= 0 else {}
    return operator(query, key, value, *lengths, 0.0, True, False, scale=scaling, seqused_k=packing.used_B, **edges)[0]


@functools.cache
def _varlen() -> Callable[..., Any] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if "seqused_k" in inspect.signature(varlen_attn).parameters else None
