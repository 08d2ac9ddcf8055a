"""Attention over a cache of grouped heads, registered with transformers' attention interface.

Two kernels, one result. *Masked* SDPA runs anywhere: the query heads that share a key head become further queries of that head,
so keys and values are never copied, where transformers' own ``sdpa`` copies them once per query head whenever a mask is given.
*Packed* attention is a variable-length flash call over a slab with each row's own length, without a mask: on CUDA, in half
precision, where a token's slot is its place in its row.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "specframe"


@attrs.frozen(eq=False)
class Packing:
    """How rows lie in a slab whose first ``used_B[i]`` slots hold row i's tokens in order, the T fed ones last."""

    used_B: torch.Tensor
    """Tokens per row, the fed ones included, int32."""
    starts_query: torch.Tensor
    """Where each row's queries begin among all queries, and where the last end, (B + 1,) int32."""
    starts_key: torch.Tensor
    """Where each row's slots begin among all slots, and where the last end, (B + 1,) int32."""
    queries: int
    slots: int

    @classmethod
    def of(cls, used_B: torch.Tensor, queries: int, slots: int) -> Packing:
        """Return the packing of rows of ``slots`` slots, each fed ``queries`` tokens."""
        rows = torch.arange(len(used_B) + 1, dtype=torch.int32, device=used_B.device)
        return cls(used_B, rows * queries, rows * slots, queries, slots)


_packing: Packing | None = None
"""The packing of the forward under way; None: it has a mask."""


@contextlib.contextmanager
def attending(config: Any, packing: Packing | None = None, name: str = NAME) -> Iterator[None]:
    """Use :func:`attend`, or what is called ``name``, inside the block for a model set to ``sdpa``; others are left alone."""
    global _packing
    chosen = config._attn_implementation
    if chosen != "sdpa":
        yield
        return
    config._attn_implementation, _packing = name, packing
    try:
        yield
    finally:
        config._attn_implementation, _packing = chosen, None


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend (B, H, T, D) queries to (B, G, S, D) keys and values, G dividing H, under an additive (B, 1, T, S) mask or a packing.

    Returns:
        (B, T, H, D) and None, as transformers' attention functions do.
    """
    if _packing is not None:
        return packed(query, key, value, _packing, scaling, options.get("sliding_window")), None
    if attention_mask is None or options.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    rows, heads, length, size = query.shape
    shared = heads // key.shape[1]
    if shared > 1:
        query = query.reshape(rows, key.shape[1], shared * length, size)
        if length > 1:  # a single query's mask row holds for all that share the head
            attention_mask = attention_mask.repeat(1, 1, shared, 1)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(rows, heads, length, value.shape[-1]).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)


def packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Attend the last T tokens of each row to all its tokens up to themselves, or to the last ``window`` of those.

    Args:
        query: (B, H, T, D).
        key, value: views (B, G, S, D) of all S slots of the first B rows of a slab.
        packing: where rows begin and how far they reach.
        scaling: of the scores; None for 1 / sqrt(D).
        window: keys a query sees, itself included; None for all.

    Returns:
        (B, T, H, D).
    """
    rows, heads, length, size = query.shape
    output = flash(
        query.transpose(1, 2).reshape(rows * length, heads, size),
        key.transpose(1, 2).flatten(0, 1),
        value.transpose(1, 2).flatten(0, 1),
        packing,
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


HALF = (torch.float16, torch.bfloat16)


@functools.cache
def packs(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> bool:
    """Return whether packed attention can be had here and agrees with masked attention: it is tried once on a few tokens.

    Args:
        device, dtype: of the model.
        heads, key_heads, size: the shape of its attention.
    """
    if device.type != "cuda" or dtype not in HALF or size > 256 or size % 8:
        return False
    try:
        return packed_error(device, dtype, heads, key_heads, size) < 3e-2
    except (RuntimeError, NotImplementedError, TypeError):
        return False


@torch.inference_mode()
def packed_error(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> float:
    """Return the largest difference between packed and masked attention on random rows of 5, 12 and 3 tokens, 3 of them fed.

    Windows of 4 and of all tokens are tried. Entries are of the order of 1.
    """
    generator = torch.Generator().manual_seed(0)
    used, slots, fed = torch.tensor([5, 12, 3]), 16, 3

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    query = normal(3, heads, fed, size)
    key, value = (normal(3, slots, key_heads, size).transpose(1, 2) for _ in range(2))
    packing = Packing.of(used.to(device, torch.int32), fed, slots)
    places_BT1 = (used[:, None] - fed + torch.arange(fed))[..., None].to(device)
    slots_S = torch.arange(slots, device=device)
    error = 0.0
    for window in (None, 4):
        hidden_BTS = slots_S > places_BT1
        if window is not None:
            hidden_BTS |= slots_S <= places_BT1 - window
        mask = torch.zeros((), dtype=dtype, device=device).masked_fill(hidden_BTS, torch.finfo(dtype).min)[:, None]
        expected, _ = attend(torch.nn.Module(), query, key, value, mask)
        error = max(error, float((packed(query, key, value, packing, None, window) - expected).abs().max()))
    return error
