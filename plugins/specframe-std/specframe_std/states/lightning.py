"""Lightning attention: linear attention with a fixed decay per head (arXiv 2401.04658), as MiniMax has it.

Tensor names carry their shape: B rows, T tokens, H heads, K entries of a key and of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from specframe.contracts.states import Inputs, LayerState, Parts, StateKind, StateShape
from specframe_std.states import mixers, recurrence
from specframe_std.states.recurrence import RecurrenceSteps
from specframe_std.states.scans import linear_scan, state_after

WIDEST = 64
"""Tokens of a chain for which all pairs are computed at once."""


class Lightning:
    """The linear attention of MiniMax, with a fixed decay per head.

    The scan is written out in the layers' ``forward``, so all of it is here.
    """

    offers = frozenset({"bitwise"})

    def by_token(self) -> StateKind:
        """Return the kind with tokens that are taken in one after the other."""
        return SteppedLightning()

    def layers(self, model: torch.nn.Module) -> Mapping[int, tuple[torch.nn.Module, ...]]:
        """Return the layers that keep a linear cache."""
        return mixers.by_layer(module for module in model.modules() if "set_linear_cache" in mixers.calls(module))

    def shape(self, layer: torch.nn.Module) -> StateShape:
        """Return the shape of the matrix of each head."""
        mixer: Any = layer
        weight = mixer.qkv_proj.weight
        return StateShape(
            ((mixer.num_attention_heads, mixer.head_dim, mixer.head_dim),), (weight.dtype,), weight.device
        )

    def forward(self, layer: Any, state: LayerState) -> Callable[..., Any]:
        """Return what goes on from the rows' states."""

        def attend(hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
            rows, width, _size = hidden_states.shape
            projected = layer.act_fn(layer.qkv_proj(hidden_states))
            heads = projected.view(rows, width, layer.num_attention_heads, -1)
            query, key, value = heads.split(layer.head_dim, dim=-1)
            output, after = self.scanned(layer, query, key, value, state)
            output = layer.norm(output.reshape(rows, width, -1))
            output = layer.out_proj(layer.output_gate(hidden_states).sigmoid() * output)
            state.note((key, value), (after,) if state.sees_BTT is None else None)
            return output, after

        return attend

    def scanned(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, state: LayerState
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs (B, T, H, K) and the states after the last token."""
        return scanned(layer, query, key, value, state.before[0], state.real_BT, state.sees_BTT)

    def advance(self, layer: torch.nn.Module, before: Parts, inputs: Inputs, counts_B: torch.Tensor) -> Parts:
        """Return the states after the first tokens of each row."""
        key, value = (one.transpose(1, 2) for one in inputs)
        stands_BT = torch.arange(key.shape[2], device=counts_B.device) < counts_B[:, None]
        decay_BHT1 = (-layer.slope_rate).expand(len(key), -1, key.shape[2], -1)  # type: ignore[operator]
        return (state_after(key, value, decay_BHT1, before[0], stands_BT),)


class SteppedLightning(Lightning):
    """The same, one token after the other, in float32; a state is rounded after each."""

    def scanned(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, state: LayerState
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs (B, T, H, K) and the states after the last token."""
        steps = RecurrenceSteps(taken_by(layer), (key, value), read, query, lambda outputs: outputs.to(value.dtype))
        outputs, after = recurrence.scanned(steps, state.before[0], state.real_BT, state.parents_BT)
        return steps.outcome(outputs), after

    def advance(self, layer: torch.nn.Module, before: Parts, inputs: Inputs, counts_B: torch.Tensor) -> Parts:
        """Return the states after the first tokens of each row."""
        stands_BT = torch.arange(inputs[0].shape[1], device=counts_B.device) < counts_B[:, None]
        return (recurrence.last(recurrence.one_by_one(taken_by(layer), before[0], inputs, stands_BT), before[0]),)


def taken_by(layer: Any) -> recurrence.Take:
    """Return what has a layer's states take in a token."""
    decay_H11 = (-layer.slope_rate.float()).exp()

    def taken(state_BHKK: torch.Tensor, key_BHK: torch.Tensor, value_BHK: torch.Tensor) -> torch.Tensor:
        return state_BHKK.float() * decay_H11 + key_BHK.float()[..., None] * value_BHK.float()[..., None, :]

    return taken


def read(state_BHKK: torch.Tensor, query_BHK: torch.Tensor) -> torch.Tensor:
    """Return the outputs of states, (B, H, K)."""
    return (state_BHKK.float() * query_BHK.float()[..., None]).sum(-2)


def scanned(
    layer: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    before_BHKK: torch.Tensor,
    real_BT: torch.Tensor,
    sees_BTT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs (B, T, H, K) and the states after the last token; what is not real does not decay them.

    Args:
        layer: has the decays.
        query: (B, T, H, K).
        key: (B, T, H, K).
        value: (B, T, H, K).
        before_BHKK: the states before.
        real_BT: which tokens count.
        sees_BTT: which places see which, or None for a chain.
    """
    decay_BHT1 = -layer.slope_rate * real_BT[:, None, :, None]
    given = query, key * real_BT[..., None, None], value
    outputs, width = [], key.shape[1] if sees_BTT is not None else WIDEST
    for first in range(0, key.shape[1], width):
        part = slice(first, first + width)
        asked, keys, values = (one[:, part].transpose(1, 2) for one in given)
        output, _ = linear_scan(asked, keys, values, decay_BHT1[:, :, part], before_BHKK, sees_BTT)
        if sees_BTT is None:
            before_BHKK = state_after(keys, values, decay_BHT1[:, :, part], before_BHKK)
        outputs.append(output.transpose(1, 2))
    return torch.cat(outputs, dim=1), before_BHKK
