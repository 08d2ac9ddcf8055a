"""Short convolutions whose weights are made of each token, as Inkling 2 has them for keys and values.

Tensor names carry their shape: B rows, T tokens, C channels, W places of the convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch

from specframe.contracts.states import Inputs, LayerState, Parts, StateShape
from specframe_std.states import mixers, windows


@attrs.frozen(eq=False)
class Paths:
    """A stand-in for a module's cache: each token is a row for itself, and has the inputs on its path, (B * T, C, W)."""

    inputs: torch.Tensor

    def update_conv_state(self, *_: Any, **__: Any) -> torch.Tensor:
        """Return the inputs of each token's window, its own last."""
        return self.inputs


class DynamicConvolution:
    """The short convolutions of Inkling 2 whose weights are made of each token."""

    def layers(self, model: torch.nn.Module) -> Mapping[int, tuple[torch.nn.Module, ...]]:
        """Return the modules that convolve a window with weights of each token, by the number of their layer."""
        return mixers.by_layer(
            one for one in model.modules() if {"update_conv_state", "unfold"} <= {*mixers.calls(one)}
        )

    def shape(self, layer: Any) -> StateShape:
        """Return the shape of the window."""
        weight = layer.static_weight
        return StateShape(((weight.shape[1], layer.conv_kernel_size - 1),), (torch.float32,), weight.device)

    def forward(self, layer: Any, state: LayerState) -> Callable[..., Any]:
        """Return what goes on from the rows' windows."""

        def convolve(hidden_states: torch.Tensor, dynamic_input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            width, chain = layer.conv_kernel_size, state.parents_BT is None
            inputs_BTC = hidden_states.float() * state.real_BT[..., None]
            full_BCT = torch.cat([state.before[0], inputs_BTC.mT], dim=-1)
            if state.apart:
                full_BCT = windows.adjoining(full_BCT, state.real_BT)
            state.note((inputs_BTC,), (full_BCT[..., 1 - width :],) if chain else None)
            if state.parents_BT is None:
                paths_BCTW = full_BCT.unfold(-1, width, 1)
            else:
                paths_BCTW = windows.along_paths(full_BCT, state.parents_BT, width)
            tokens = (one.flatten(0, 1)[:, None] for one in (hidden_states, dynamic_input))
            output = mixers.own_forward(layer)(layer, *tokens, Paths(paths_BCTW.transpose(1, 2).flatten(0, 1)))
            return output.view(hidden_states.shape)

        return convolve

    def advance(self, layer: torch.nn.Module, before: Parts, inputs: Inputs, counts_B: torch.Tensor) -> Parts:
        """Return the windows after the first tokens of each row."""
        return (windows.slid(before[0], inputs[0], counts_B),)
