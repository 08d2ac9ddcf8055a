"""Mamba: selective state spaces with a decay of its own for every entry of a state (arXiv 2312.00752).

Its mixers' scan of several tokens takes no state, so that it cannot go on from one: this one does.

Tensor names carry their shape: B rows, T tokens, C channels, N entries of a channel's state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from specframe.contracts.states import Inputs, LayerState
from specframe_std.states.mixers import MixerKind


class Mamba1(MixerKind):
    """The selective scan of Mamba, Falcon-Mamba, Jamba and Zamba."""

    scan = "mamba_selective_scan"

    def sizes(self, layer: Any) -> tuple[tuple[int, ...], ...]:
        """Return (C, N) of each head: Zamba's mixers have several, each with a scan."""
        heads = getattr(layer, "n_mamba_heads", 1)
        return ((layer.intermediate_size // heads, layer.ssm_state_size),) * heads

    def run(
        self,
        layer: Any,
        usual: Callable[..., Any],
        state: LayerState,
        held: torch.Tensor,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: torch.Tensor | None = None,
        z: torch.Tensor | None = None,
        delta_bias: torch.Tensor | None = None,
        delta_softplus: bool = False,
        **named: Any,
    ) -> tuple[torch.Tensor, Inputs, torch.Tensor]:
        """Return the outputs (B, C, T), the inputs, steps and B of each token, and the states after the last one."""
        if delta_bias is not None:
            dt = dt + delta_bias.to(dt.dtype)[..., None]
        if delta_softplus:
            dt = F.softplus(dt)
        dt = dt * state.real_BT[:, None]
        inputs = hidden_states.mT, dt.mT, B.mT
        states = scanned(*inputs, A, held, state.parents_BT)
        output = torch.stack(
            [(one.to(hidden_states.dtype) @ C[..., place, None])[..., 0] for place, one in enumerate(states)], dim=-1
        )
        if D is not None:
            output = output + hidden_states * D[:, None]
        if z is not None:
            output = output * F.silu(z)
        return output, inputs, states[-1]

    def after(
        self, layer: Any, scan: int, before: torch.Tensor, inputs: Inputs, stands_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the states after the tokens that stand: others take no time."""
        hidden_states, dt, keys = inputs
        decay = -layer.A_log.float().exp()
        if decay.ndim > 2:
            decay = decay[scan]
        return scanned(hidden_states, dt * stands_BT[..., None], keys, decay, before)[-1]


def scanned(
    inputs_BTC: torch.Tensor,
    steps_BTC: torch.Tensor,
    keys_BTN: torch.Tensor,
    decay_CN: torch.Tensor,
    before_BCN: torch.Tensor,
    parents_BT: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Return the states after each token, from its parent's, in float32."""
    added_BTC = steps_BTC.float() * inputs_BTC.float()
    states = [before_BCN.float()]
    for place in range(steps_BTC.shape[1]):
        last_BCN = states[-1]
        if parents_BT is not None and place:
            rows_B = torch.arange(len(last_BCN), device=last_BCN.device)
            last_BCN = torch.stack(states, dim=1)[rows_B, (parents_BT[:, place] + 1).expand(len(rows_B))]
        kept_BCN = (steps_BTC[:, place, :, None].float() * decay_CN).exp()
        states.append(kept_BCN * last_BCN + added_BTC[:, place, :, None] * keys_BTN[:, place, None].float())
    return states[1:]
