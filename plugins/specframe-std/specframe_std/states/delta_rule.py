"""The gated delta rule, with one decay per head (Gated DeltaNet) or per entry of the key (Kimi Delta Attention).

Papers: arXiv 2412.06464 and 2510.26692. A state forgets by a gate. What a token adds is how much its value differs from the one
that the state has for its key.

Tensor names carry their shape: B rows, T tokens, H heads, K entries of a key, V of a value, D decays of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from specframe.contracts.states import Inputs, LayerState
from specframe_std.states.mixers import MixerKind
from specframe_std.states.scans import linear_scan

EPSILON = 1e-6
"""What mixers add to the square of a vector's length before they divide by its root."""


class DeltaRule(MixerKind):
    """A delta rule, whose mixers hand queries, keys, values, gates and strengths to a scan."""

    widest: ClassVar[int]
    """Tokens of a chain up to which all pairs are computed at once; more are left to the mixer's own scan, which goes in chunks."""

    def run(
        self,
        layer: Any,
        usual: Callable[..., Any],
        state: LayerState,
        held: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **named: Any,
    ) -> tuple[torch.Tensor, Inputs, torch.Tensor]:
        """Return the outputs, keys, values, gates and strengths of each token, and the states after the last one."""
        real_BT1 = state.real_BT[..., None]
        g = g * (real_BT1 if g.ndim == 3 else real_BT1[..., None])
        beta = beta * real_BT1
        units = unit if use_qk_l2norm_in_kernel else torch.Tensor.float
        key_BTHK = units(key)
        if state.sees_BTT is None and key.shape[1] > self.widest:
            named |= {"initial_state": held, "output_final_state": True}
            output, after = usual(
                query, key, value, g=g, beta=beta, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, **named
            )
        else:
            output, after = rule(units(query), key_BTHK, value, g, beta, held, state.sees_BTT)
        return output.to(value.dtype), (key_BTHK, value, g, beta), after

    def after(
        self, layer: Any, scan: int, before: torch.Tensor, inputs: Inputs, stands_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the states after the tokens that stand: others are given no strength, and do not decay it."""
        key, value, g, beta = inputs
        for chunk in torch.arange(key.shape[1]).split(self.widest):
            part = slice(int(chunk[0]), int(chunk[-1]) + 1)
            stands_BT1 = stands_BT[:, part, None]
            kept = g[:, part] * (stands_BT1 if g.ndim == 3 else stands_BT1[..., None])
            given = key[:, part], key[:, part], value[:, part], kept, beta[:, part] * stands_BT1
            _, before = rule(*given, before)
        return before


def rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    before_BHKV: torch.Tensor,
    sees_BTT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs (B, T, H, V) and the states after the last token, in float32.

    Args:
        query: (B, T, H, K), where several heads of values may share one of queries and keys.
        key: (B, T, H, K).
        value: (B, T, H, V).
        g: logarithms of the decays, (B, T, H) or (B, T, H, K).
        beta: strengths, (B, T, H).
        before_BHKV: the states before.
        sees_BTT: which places see which; None: a chain.
    """
    shared = value.shape[2] // key.shape[2]
    query, key, value, g, beta = (part.float().transpose(1, 2) for part in (query, key, value, g, beta))
    if shared > 1:
        query, key = query.repeat_interleave(shared, 1), key.repeat_interleave(shared, 1)
    decay_BHTD = g[..., None] if g.ndim == 3 else g
    output, after = linear_scan(
        query * query.shape[-1] ** -0.5, key, value, decay_BHTD, before_BHKV.float(), sees_BTT, beta[..., None]
    )
    return output.transpose(1, 2), after


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors of length one, in float32, as mixers make them."""
    vectors = vectors.float()
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + EPSILON)


class GatedDelta(DeltaRule):
    """The gated delta rule of Qwen3-Next, Qwen3.5 and OLMo Hybrid."""

    scan = "torch_chunk_gated_delta_rule"
    widest = 64  # the chunk of the mixers' own scan

    def sizes(self, layer: Any) -> tuple[tuple[int, ...], ...]:
        """Return (H, K, V)."""
        return ((layer.num_v_heads, layer.head_k_dim, layer.head_v_dim),)


class KimiDelta(DeltaRule):
    """Kimi Delta Attention, of Kimi Linear and Bailing hybrid models."""

    scan = "chunk_kimi_delta_attention"
    widest = 16  # each pair of tokens has a decay per entry of the key: 8 MB per row for 32 heads of 128

    def sizes(self, layer: Any) -> tuple[tuple[int, ...], ...]:
        """Return (H, K, V)."""
        return ((layer.num_heads, layer.head_dim, layer.head_dim),)
