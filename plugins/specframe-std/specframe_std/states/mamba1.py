"""Mamba: selective state spaces with a decay of its own for every entry of a state (arXiv 2312.00752).

Its mixers' scan of several tokens takes no state, so that it cannot go on from one: this one does.

Tensor names carry their shape: B rows, T tokens, C channels, N entries of a channel's state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from specframe.contracts.states import Inputs, LayerState
from specframe_std.states.mixers import MixerKind
from specframe_std.states.recurrence import RecurrenceSteps, Take


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
        dt = steps_of(dt, delta_bias, delta_softplus) * state.real_BT[:, None]
        inputs = hidden_states.mT, dt.mT, B.mT
        states = scanned(*inputs, A, held, state.parents_BT)
        output = torch.stack(
            [(one.to(hidden_states.dtype) @ C[..., place, None])[..., 0] for place, one in enumerate(states)], dim=-1
        )
        return gated(output, hidden_states, D, z), inputs, states[-1]

    def after(
        self, layer: Any, scan: int, before: torch.Tensor, inputs: Inputs, stands_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the states after the kept tokens: others take no time."""
        hidden_states, dt, keys = inputs
        return scanned(hidden_states, dt * stands_BT[..., None], keys, decay_of(layer, scan), before)[-1]

    def steps(
        self,
        layer: Any,
        state: LayerState,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: torch.Tensor | None = None,
        z: torch.Tensor | None = None,
        delta_bias: torch.Tensor | None = None,
        delta_softplus: bool = False,
        **_: Any,
    ) -> RecurrenceSteps:
        """Return the scan token by token: inputs, steps and B are taken in, and C reads."""
        inputs = hidden_states.mT, steps_of(dt, delta_bias, delta_softplus).mT, B.mT

        def outcome(outputs_BTC: torch.Tensor) -> torch.Tensor:
            return gated(outputs_BTC.to(hidden_states.dtype).mT, hidden_states, D, z)

        return RecurrenceSteps(functools.partial(taken, A), inputs, read, C.mT, outcome)

    def take(self, layer: Any, scan: int) -> Take:
        """Return the recurrence of one token."""
        return functools.partial(taken, decay_of(layer, scan))


def steps_of(dt_BCT: torch.Tensor, delta_bias: torch.Tensor | None, delta_softplus: bool) -> torch.Tensor:
    """Return the step of each token."""
    if delta_bias is not None:
        dt_BCT = dt_BCT + delta_bias.to(dt_BCT.dtype)[..., None]
    return F.softplus(dt_BCT) if delta_softplus else dt_BCT


def gated(
    output_BCT: torch.Tensor, inputs_BCT: torch.Tensor, D: torch.Tensor | None, z: torch.Tensor | None
) -> torch.Tensor:
    """Return a scan's output with what it passes on of its inputs, and its gate."""
    if D is not None:
        output_BCT = output_BCT + inputs_BCT * D[:, None]
    return output_BCT if z is None else output_BCT * F.silu(z)


def decay_of(layer: Any, scan: int) -> torch.Tensor:
    """Return the decays (C, N) of a mixer's scan of this number."""
    decay = -layer.A_log.float().exp()
    return decay[scan] if decay.ndim > 2 else decay


def taken(
    decay_CN: torch.Tensor,
    state_BCN: torch.Tensor,
    inputs_BC: torch.Tensor,
    steps_BC: torch.Tensor,
    keys_BN: torch.Tensor,
) -> torch.Tensor:
    """Return the states after one more token."""
    steps_BC = steps_BC.float()
    kept_BCN = (steps_BC[..., None] * decay_CN).exp()
    return kept_BCN * state_BCN + (steps_BC * inputs_BC.float())[..., None] * keys_BN[:, None].float()


def read(state_BCN: torch.Tensor, query_BN: torch.Tensor) -> torch.Tensor:
    """Return the outputs of states, (B, C)."""
    return (state_BCN * query_BN[:, None].float()).sum(-1)


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
