"""Flex attention: torch's FlexAttention, which computes only the blocks of slots that queries can see, by the order of both.

It takes any placement and any precision, and passes over what no query of a block may look at: slots after a row's end, or before
a window. On CUDA it is one compiled kernel; elsewhere it is computed as it is written, scores and all, which shows that blocks
are right and is not for speed.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from specframe.contracts.attention import AttentionFacts
from specframe.contracts.cache import DenseView, KVView, Placement, Window, last_hidden
from specframe.devices import kinds
from specframe.errors import SpecframeWarning
from specframe_std.attention.kernel_check import agrees

BLOCK = 128
"""Queries and slots of a block."""

FAR = 2**62
"""Later than any token."""


class Flex:
    """FlexAttention, by blocks of queries and slots: makes no mask tensors; slow where there is no CUDA."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"dense", "tree", "window", "chunk", "compiled"})
    expects = "keys and values of one size, and a compiler for its kernel"

    def suits(self, facts: AttentionFacts) -> bool:
        """Return whether the kernel takes the model's heads on CUDA. Elsewhere it is slow, and has to be asked for."""
        if "flex" in kinds.of(facts.device).kernels:
            return all(
                shape.key_size == shape.value_size
                and works(facts.device, shape.dtype, facts.heads, shape.heads, shape.key_size)
                for shape in facts.shapes
            )
        if facts.asked:
            slow = f"attention 'flex' holds all scores on {facts.device.type}: it is there to be compared; 'masked' is faster"
            warnings.warn(slow, SpecframeWarning, stacklevel=2)
        return facts.asked

    def plan(self, placement: Placement) -> FlexPlan:
        """Return which blocks of slots hold anything to see."""
        return FlexPlan(placement)


@functools.cache
def works(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> bool:
    """Return whether the kernel compiles for these heads on a device and gives what masked attention gives; tried once."""
    return agrees(Flex(), device, dtype, heads, key_heads, size)


class FlexPlan:
    """Visibility of one forward's tokens, by blocks of queries and slots."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._masks: dict[Window, BlockMask] = {}

    def attend(self, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
        """Attend each token to what its row holds up to itself, within its window or chunk."""
        assert isinstance(view, DenseView)
        key, value = view.keys, view.values
        if window not in self._masks:
            self._masks[window] = block_mask(self._placement, window)
        made = self._masks[window]
        if "flex" in kinds.of(query.device).kernels:
            shared = query.shape[1] != key.shape[1]
            output = kernel()(query, key, value, block_mask=made, scale=scaling, enable_gqa=shared)
        else:
            output = as_written(query, key, value, made, scaling)
        return output.transpose(1, 2).contiguous()


@functools.cache
def kernel() -> Any:
    """Return FlexAttention, which is compiled at its first call."""
    return torch.compile(flex_attention)


def as_written(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, made: BlockMask, scaling: float | None
) -> torch.Tensor:
    """Return the output that the kernel should compute, from all scores of visible pairs within the kernel's blocks."""
    (rows, _heads, queries, _size), slots = query.shape, key.shape[2]
    row_B, query_T, slot_S = (torch.arange(count, device=query.device) for count in (rows, queries, slots))
    seen_BTS = made.mask_mod(row_B[:, None, None], row_B[:1], query_T[:, None], slot_S)
    seen_BTS &= looked_at(made).repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)[:, :queries, :slots]
    return F.scaled_dot_product_attention(query, key, value, seen_BTS[:, None], scale=scaling, enable_gqa=True)


def looked_at(made: BlockMask) -> torch.Tensor:
    """Return which blocks of slots each block of queries looks at, (B, Q, K)."""
    indices_BQK = made.kv_indices[:, 0].long()
    among_first_BQK = torch.arange(indices_BQK.shape[2], device=indices_BQK.device) < made.kv_num_blocks[:, 0, :, None]
    return torch.zeros_like(among_first_BQK).scatter(2, indices_BQK, among_first_BQK)


def block_mask(placement: Placement, window: Window) -> BlockMask:
    """Return which blocks of slots each block of queries has to look at, and the rule of what it may see there.

    A block of slots is left out when its last token is not above the least floor of a block of queries, the last order that their
    windows hide, or its first is after the last of them. What is left of a block, the rule of the placement says.
    """
    rows, queries = placement.slots_BT.shape
    index_BT, key_index_BS = placement.index_BT.clamp(min=0).expand(rows, -1), placement.key_index_BS.expand(rows, -1)
    placement = attrs.evolve(placement, index_BT=index_BT, key_index_BS=key_index_BS)  # one look-up fewer per score
    floor_BT = torch.full_like(index_BT, -1) if window is None else last_hidden(index_BT, window).clamp(min=-1)
    visible = placement.rule(window)

    def seen(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        return visible(row, query, slot)

    first_BK = _blocks(key_index_BS.masked_fill(key_index_BS < 0, FAR), FAR).amin(-1)
    last_BK = _blocks(key_index_BS, -1).amax(-1)
    looked_at_BQK = _blocks(floor_BT, FAR).amin(-1)[:, :, None] < last_BK[:, None]
    looked_at_BQK &= first_BK[:, None] <= _blocks(index_BT, -1).amax(-1)[:, :, None]
    counts_B1Q = looked_at_BQK.sum(-1, dtype=torch.int32)[:, None]
    indices_B1QK = looked_at_BQK.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)[:, None]
    return BlockMask.from_kv_blocks(
        counts_B1Q,
        indices_B1QK,
        BLOCK_SIZE=BLOCK,
        mask_mod=seen,
        seq_lengths=(queries, key_index_BS.shape[1]),
        compute_q_blocks=False,
    )


def _blocks(values_BN: torch.Tensor, padding: int) -> torch.Tensor:
    """Return values in blocks, (B, N / BLOCK rounded up, BLOCK)."""
    return F.pad(values_BN, (0, -values_BN.shape[1] % BLOCK), value=padding).unflatten(1, (-1, BLOCK))
