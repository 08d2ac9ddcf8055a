"""Mamba-2: selective state spaces with one decay per head (arXiv 2405.21060).

Tensor names carry their shape: B rows, T tokens, H heads, P entries of a head, G groups of heads that share N entries of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from specframe.contracts.states import Inputs, LayerState
from specframe_std.states.mixers import MixerKind
from specframe_std.states.scans import linear_scan

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
    ) -> tuple[torch.Tensor, Inputs, torch.Tensor]:
        """Return the outputs, the steps, inputs and B of each token, and the states after the last one."""
        if dt_bias is not None:
            dt = dt + dt_bias.to(dt.dtype)
        if dt_softplus:
            dt = F.softplus(dt)
        bounded = dt.clamp(*dt_limit)
        if state.prompt_BT is not None:
            bounded = bounded.where(state.prompt_BT[..., None], dt.clamp(min=0))
        dt = bounded * state.real_BT[..., None]
        if state.sees_BTT is None and dt.shape[1] > WIDEST:
            named |= {"initial_states": held, "return_final_states": True}
            output, after = usual(hidden_states, dt, A, B, C, chunk_size=chunk_size, D=D, **named)
        else:
            output, after = scanned(hidden_states, dt, A, B, C, held, state.sees_BTT)
            if D is not None:
                output = output + D[:, None] * hidden_states.float()
        return output.contiguous(), (hidden_states, dt, B), after

    def after(
        self, layer: Any, scan: int, before: torch.Tensor, inputs: Inputs, stands_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the states after the tokens that stand: others take no time."""
        hidden_states, dt, keys = inputs
        decay = -layer.A_log.float().exp()
        for chunk in torch.arange(dt.shape[1]).split(WIDEST):
            part = slice(int(chunk[0]), int(chunk[-1]) + 1)
            steps = dt[:, part] * stands_BT[:, part, None]
            _, before = scanned(hidden_states[:, part], steps, decay, keys[:, part], keys[:, part], before)
        return before


def scanned(
    inputs_BTHP: torch.Tensor,
    steps_BTH: torch.Tensor,
    decay_H: torch.Tensor,
    keys_BTGN: torch.Tensor,
    queries_BTGN: torch.Tensor,
    before_BHPN: torch.Tensor,
    sees_BTT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs (B, T, H, P) without those of ``D``, and the states after the last token, in float32."""
    shared = inputs_BTHP.shape[2] // keys_BTGN.shape[2]
    steps_BHT = steps_BTH.float().mT
    key, query = (part.float().transpose(1, 2).repeat_interleave(shared, 1) for part in (keys_BTGN, queries_BTGN))
    value = inputs_BTHP.float().transpose(1, 2) * steps_BHT[..., None]
    decay = (steps_BHT * decay_H.float()[:, None])[..., None]
    output, after = linear_scan(query, key, value, decay, before_BHPN.float().mT, sees_BTT)
    return output.transpose(1, 2), after.mT
