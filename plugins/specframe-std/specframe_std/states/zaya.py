"""Compressed convolutional attention (arXiv 2510.04476), as Zaya has it: queries and keys are convolved, and values come late.

Its layers attend as well. What a row keeps of them in addition to keys and values is the window of the convolutions, and the hidden
state of its last token, of which half of the next token's value is made.

Tensor names carry their shape: B rows, T tokens, C channels of the convolutions, W places of their window, D entries of a hidden
state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from specframe.contracts.states import Inputs, LayerState, Parts, StateKind, StateShape
from specframe_std.states import mixers, windows


class CompressedConvolution:
    """The convolved queries and keys, and delayed values, of Zaya.

    The window of its projections is not passed to a cache token by token, so all of them is here.
    """

    offers = frozenset({"bitwise"})

    def by_token(self) -> StateKind:
        """Return the kind with convolutions that are sums over taps."""
        return SummedConvolution()

    def mixed(self, layer: Any, full_BCT: torch.Tensor) -> torch.Tensor:
        """Return what the two convolutions make of queries and keys, those of the window first."""
        return layer.conv_qk_grouped(layer.conv_qk_depthwise(full_BCT))

    def layers(self, model: torch.nn.Module) -> Mapping[int, tuple[torch.nn.Module, ...]]:
        """Return the projections that convolve queries and keys, by the number of their layer."""
        return mixers.by_layer(
            module for module in model.modules() if {"conv_qk_depthwise", "v_proj_delayed"} <= {*mixers.calls(module)}
        )

    def shape(self, layer: Any) -> StateShape:
        """Return the shapes of the window and of a hidden state."""
        weight = layer.q_proj.weight
        window = (layer.conv_qk_depthwise.in_channels, layer.conv_kernel_size)
        return StateShape((window, (layer.hidden_size,)), (weight.dtype,) * 2, weight.device)

    def forward(self, layer: Any, state: LayerState) -> Callable[..., Any]:
        """Return what goes on from the rows' states."""

        def project(hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            real_BT1 = state.real_BT[..., None].to(hidden_states.dtype)
            hidden_BTD = hidden_states * real_BT1
            queries, keys = layer.q_proj(hidden_BTD), layer.k_proj(hidden_BTD)
            inputs_BTC = torch.cat([queries, keys], dim=-1) * real_BT1  # a bias is no zero
            window_BCW, last_BD = state.before
            full_BCT = torch.cat([window_BCW, inputs_BTC.mT], dim=-1)
            earlier_BTD = torch.cat([last_BD[:, None], hidden_BTD], dim=1)
            if state.apart:
                full_BCT = windows.adjoining(full_BCT, state.real_BT)
                earlier_BTD = windows.adjoining(earlier_BTD.mT, state.real_BT).mT
            if state.parents_BT is None:
                mixed_BCT = self.mixed(layer, full_BCT)
                before_BTD = earlier_BTD[:, :-1]
            else:
                mixed_BCT = self._along(layer, full_BCT, state.parents_BT)
                parents_BT = (state.parents_BT + 1).expand(len(hidden_BTD), -1)
                before_BTD = earlier_BTD.gather(1, parents_BT[..., None].expand_as(hidden_BTD))
            chain = state.parents_BT is None
            after = (full_BCT[..., -window_BCW.shape[-1] :], earlier_BTD[:, -1]) if chain else None
            state.note((inputs_BTC, hidden_BTD), after)
            values = torch.cat([layer.v_proj_current(hidden_BTD), layer.v_proj_delayed(before_BTD)], dim=-1)
            return *residual(layer, queries, keys, mixed_BCT.mT), by_head(layer, values)

        return project

    def advance(self, layer: torch.nn.Module, before: Parts, inputs: Inputs, counts_B: torch.Tensor) -> Parts:
        """Return the window and the hidden state after the first tokens of each row."""
        earlier_BTD = torch.cat([before[1][:, None], inputs[1]], dim=1)
        last_BD = earlier_BTD[torch.arange(len(counts_B), device=counts_B.device), counts_B]
        return windows.slid(before[0], inputs[0], counts_B), last_BD

    def _along(self, layer: Any, full_BCT: torch.Tensor, parents_BT: torch.Tensor) -> torch.Tensor:
        """Return the two convolutions over the path to each token of a tree, (B, C, T)."""
        paths_BCTW = windows.along_paths(full_BCT, parents_BT, layer.conv_kernel_size + 1)
        rows, channels, width, places = paths_BCTW.shape
        paths = paths_BCTW.transpose(1, 2).reshape(rows * width, channels, places)
        return self.mixed(layer, paths).view(rows, width, channels).mT


class SummedConvolution(CompressedConvolution):
    """The same, with convolutions that add up the products of a token's own window."""

    def mixed(self, layer: Any, full_BCT: torch.Tensor) -> torch.Tensor:
        """Return what the two convolutions make of queries and keys, those of the window first."""
        depthwise, grouped = layer.conv_qk_depthwise, layer.conv_qk_grouped
        exact = torch.promote_types(full_BCT.dtype, torch.float32)
        taps = full_BCT.to(exact).unfold(-1, depthwise.kernel_size[0], 1).unbind(-1)
        by_channel = windows.summed_taps(taps, depthwise.weight[:, 0].to(exact), depthwise.bias.to(exact))
        taps_BCTW = by_channel.to(full_BCT.dtype).unfold(-1, grouped.kernel_size[0], 1)
        each = taps_BCTW.unflatten(1, (grouped.groups, -1)).transpose(2, 3).flatten(-2).unbind(1)
        weights, biases = (one.unflatten(0, (grouped.groups, -1)) for one in (grouped.weight.flatten(1), grouped.bias))
        return torch.cat([*map(torch.nn.functional.linear, each, weights, biases)], dim=-1).mT


def residual(
    layer: Any, queries: torch.Tensor, keys: torch.Tensor, mixed_BTC: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys, (B, T, heads, size), to which what was convolved is added."""
    shared = by_head(layer, keys).repeat_interleave(layer.num_key_value_groups, dim=2)
    own = (by_head(layer, queries) + shared) * 0.5
    for_keys = own.unflatten(2, (-1, layer.num_key_value_groups)).mean(dim=-2)
    found, further = mixed_BTC.split([queries.shape[-1], keys.shape[-1]], dim=-1)
    return by_head(layer, found) + own, by_head(layer, further) + for_keys


def by_head(layer: Any, values_BTC: torch.Tensor) -> torch.Tensor:
    """Return the entries of each head, (B, T, heads, size)."""
    return values_BTC.unflatten(-1, (-1, layer.head_dim))
