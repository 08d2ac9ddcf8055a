"""Mamba-2: selective state spaces with one decay per head (arXiv 2405.21060).

Tensor names carry their shape: B rows, T tokens, H heads, P entries of a head, G groups of heads that share N entries of a state.
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
from specframe_std.states.scans import by_head, linear_scan, state_after

WIDEST = 64
"""Tokens of a chain up to which all pairs are computed at once; more are left to the mixer's own scan, which goes in chunks."""


class Mamba2(MixerKind):
    """The selective scan of Mamba-2, Falcon-H1, Nemotron-H, Granite 4, Zamba2 and Bamba.

    A mixer may bound the step of a token that it reads in a prompt, and not that of one that it is fed alone. So does this: by
    whether a token is of the prompt, in whatever block it is fed.
    """

    scan = "mamba2_chunk_scan"

    def sizes(self, layer: Any) -> tuple[tuple[int, ...], ...]:
        """Return (H, P, N)."""
        return ((layer.num_heads, layer.head_dim, layer.ssm_state_size),)

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
        chunk_size: int = WIDEST,
        D: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        **named: Any,
    ) -> tuple[torch.Tensor, Inputs, torch.Tensor | Callable[[], torch.Tensor]]:
        """Return the outputs, and the B, what it adds and the decay of each token, and the states after the last one."""
        dt = steps_of(state, dt, dt_bias, dt_softplus, dt_limit)
        inputs_BTHP, steps_BTH1 = hidden_states.float(), dt.float()[..., None]
        added_BTHP, decay_BTH1 = inputs_BTHP * steps_BTH1, steps_BTH1 * A.float()[:, None]
        noted = B, added_BTHP, decay_BTH1
        if state.sees_BTT is None and dt.shape[1] > WIDEST:
            named |= {"initial_states": held, "return_final_states": True}
            output, after = usual(hidden_states, dt, A, B, C, chunk_size=chunk_size, D=D, **named)
            return output.contiguous(), noted, after
        query, keys, added, decay = (by_head(one, added_BTHP.shape[2]) for one in (C.float(), B.float(), *noted[1:]))
        output, _ = linear_scan(query, keys, added, decay, held.mT, state.sees_BTT)
        after = functools.partial(state_after, added, keys, decay, held)
        output = output.transpose(1, 2)
        if D is not None:
            output = output + D[:, None] * inputs_BTHP
        return output.contiguous(), noted, after

    def after(
        self, layer: Any, scan: int, before: torch.Tensor, inputs: Inputs, stands_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the states after the kept tokens: others add nothing, and do not decay them."""
        keys, added, decay = (by_head(one.float(), inputs[1].shape[2]) for one in inputs)
        return state_after(added, keys, decay, before, stands_BT)

    def steps(
        self,
        layer: Any,
        state: LayerState,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        chunk_size: int = WIDEST,
        D: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        **_: Any,
    ) -> RecurrenceSteps:
        """Return the scan token by token: B, what it adds and its decay are taken in, and C reads."""
        dt_BTH = steps_of(state, dt, dt_bias, dt_softplus, dt_limit).float()
        inputs_BTHP = hidden_states.float()
        keys, queries = (one.float().repeat_interleave(inputs_BTHP.shape[2] // one.shape[2], dim=2) for one in (B, C))
        inputs = keys, inputs_BTHP * dt_BTH[..., None], (dt_BTH * A.float()).exp()

        def outcome(outputs_BTHP: torch.Tensor) -> torch.Tensor:
            return outputs_BTHP if D is None else outputs_BTHP + D[:, None] * inputs_BTHP

        return RecurrenceSteps(taken, inputs, read, queries, outcome)

    def take(self, layer: Any, scan: int) -> Take:
        """Return the recurrence of one token."""
        return taken


def steps_of(
    state: LayerState,
    dt_BTH: torch.Tensor,
    dt_bias: torch.Tensor | None,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
) -> torch.Tensor:
    """Return the step of each token, which is bounded in a prompt; what is not real takes none."""
    if dt_bias is not None:
        dt_BTH = dt_BTH + dt_bias.to(dt_BTH.dtype)
    if dt_softplus:
        dt_BTH = F.softplus(dt_BTH)
    bounded_BTH = dt_BTH.clamp(*dt_limit)
    if state.prompt_BT is not None:
        bounded_BTH = bounded_BTH.where(state.prompt_BT[..., None], dt_BTH.clamp(min=0))
    return bounded_BTH * state.real_BT[..., None]


def taken(
    state_BHPN: torch.Tensor, key_BHN: torch.Tensor, added_BHP: torch.Tensor, decay_BH: torch.Tensor
) -> torch.Tensor:
    """Return the states after one more token."""
    return state_BHPN * decay_BH[..., None, None] + added_BHP[..., None] * key_BHN[..., None, :]


def read(state_BHPN: torch.Tensor, query_BHN: torch.Tensor) -> torch.Tensor:
    """Return the outputs of states, (B, H, P)."""
    return (state_BHPN * query_BHN[..., None, :]).sum(-1)
