"""The gated delta rule, with one decay per head (Gated DeltaNet) or per entry of the key (Kimi Delta Attention).

Papers: arXiv 2412.06464 and 2510.26692. A state forgets by a gate. What a token adds is how much its value differs from the one
that the state has for its key.

Tensor names carry their shape: B rows, T tokens, H heads, K entries of a key, V of a value, D decays of a head.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from specframe.contracts.states import Inputs, LayerState
from specframe_std.states.mixers import MixerKind
from specframe_std.states.recurrence import RecurrenceSteps, Take
from specframe_std.states.scans import by_head, linear_scan, state_after

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
    ) -> tuple[torch.Tensor, Inputs, torch.Tensor | Callable[[], torch.Tensor]]:
        """Return the outputs, keys, what they add and the decays of each token, and the states after the last one.

        Of a long chain the values and strengths are noted in place of what they add, which the mixer's own scan does not give.
        """
        units = unit if use_qk_l2norm_in_kernel else torch.Tensor.float
        beta = beta * state.real_BT[..., None]  # padding adds nothing
        if state.apart:  # else there is nothing to decay before it
            g = g * (state.real_BT[..., None] if g.ndim == 3 else state.real_BT[..., None, None])
        keys_BHTK, decay_BHTD = (
            by_head(units(key), value.shape[2]),
            (g if g.ndim == 4 else g[..., None]).transpose(1, 2).float(),
        )
        if state.sees_BTT is None and key.shape[1] > self.widest:
            named |= {"initial_state": held, "output_final_state": True}
            output, after = usual(
                query, key, value, g=g, beta=beta, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, **named
            )
            noted = keys_BHTK, value.transpose(1, 2).float(), decay_BHTD, beta.mT[..., None].float()
            return output, by_token(noted), after
        queries_BHTK = by_head(units(query), value.shape[2]) * query.shape[-1] ** -0.5
        output_BHTV, added_BHTV = linear_scan(
            queries_BHTK,
            keys_BHTK,
            value.transpose(1, 2).float(),
            decay_BHTD,
            held,
            state.sees_BTT,
            beta.mT[..., None].float(),
        )
        after = functools.partial(state_after, keys_BHTK, added_BHTV, decay_BHTD, held)
        return output_BHTV.transpose(1, 2).to(value.dtype), by_token((keys_BHTK, added_BHTV, decay_BHTD)), after

    def after(
        self, layer: Any, scan: int, before: torch.Tensor, inputs: Inputs, stands_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the states after the kept tokens: others add nothing, and do not decay them."""
        keys_BHTK, added_BHTV, decay_BHTD, *beta = by_token(inputs)
        if not beta:
            return state_after(keys_BHTK, added_BHTV, decay_BHTD, before, stands_BT)
        for first in range(0, keys_BHTK.shape[2], self.widest):
            part = slice(first, first + self.widest)
            keys, values, decay, strength = (one[:, :, part] for one in (keys_BHTK, added_BHTV, decay_BHTD, *beta))
            stands = stands_BT[:, part]
            decay, strength = (one * stands[:, None, :, None] for one in (decay, strength))
            _, added = linear_scan(keys, keys, values, decay, before, beta_BHT1=strength)
            before = state_after(keys, added, decay, before)
        return before

    def steps(
        self,
        layer: Any,
        state: LayerState,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> RecurrenceSteps:
        """Return the scan token by token: keys, values, gates and strengths are taken in, and queries read."""
        units, shared = unit if use_qk_l2norm_in_kernel else torch.Tensor.float, value.shape[2] // key.shape[2]
        query, key = (units(one).repeat_interleave(shared, dim=2) for one in (query, key))
        gate = (g if g.ndim == 4 else g[..., None]).float().exp()
        inputs = key, value.float(), gate, beta.float()[..., None]
        queries = query * query.shape[-1] ** -0.5
        return RecurrenceSteps(taken, inputs, read, queries, lambda outputs: outputs.to(value.dtype))

    def take(self, layer: Any, scan: int) -> Take:
        """Return the delta rule of one token."""
        return taken


def taken(
    state_BHKV: torch.Tensor,
    key_BHK: torch.Tensor,
    value_BHV: torch.Tensor,
    gate_BHD: torch.Tensor,
    beta_BH1: torch.Tensor,
) -> torch.Tensor:
    """Return the states after one more token."""
    state_BHKV = state_BHKV * gate_BHD[..., None]
    known_BHV = read(state_BHKV, key_BHK)
    added_BHV = (value_BHV - known_BHV) * beta_BH1
    return state_BHKV + key_BHK[..., None] * added_BHV[..., None, :]


def read(state_BHKV: torch.Tensor, query_BHK: torch.Tensor) -> torch.Tensor:
    """Return what states have for keys, (B, H, V)."""
    return (state_BHKV * query_BHK[..., None]).sum(-2)


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors of length one, in float32, as mixers make them."""
    vectors = vectors.float()
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + EPSILON)


def by_token(inputs: Inputs) -> Inputs:
    """Return what is by head by token, and the other way round."""
    return tuple(one.transpose(1, 2) for one in inputs)


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
