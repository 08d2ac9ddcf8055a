"""The network of DFlash (arXiv 2602.06036) and of DSpark's backbone: a block of masks that reads the target's features.

The features of each token of a row, fused by ``fc`` and ``hidden_norm``, give keys and values to every layer, straight from the
fused features: no layer's input norm is between. The block is the row's last token and masks. Its queries see all of the context
and all of the block. Formats differ in whether they see the block causally, and where a sliding window begins, see
:class:`BlockReach`.

Tensor names carry their shape: B rows, T tokens, S slots, F features side by side, H hidden size, G key heads, D head size. Names
of modules are those of the published files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs
import torch
from torch import nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RotaryEmbedding, rotate_half

from specframe.model.attention.interface import attend

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of positions, (B, T, D) each."""

Write = Callable[[int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Writes the keys and values (B, G, T, D) of a layer's fed tokens; returns those of all slots attended to, (B, G, S, D)."""


@attrs.frozen(eq=False)
class Sight:
    """The additive masks (B, 1, T, S) of a block's queries, for layers without a window and with one."""

    full: torch.Tensor
    sliding: torch.Tensor | None = None


@attrs.frozen
class BlockReach:
    """The tokens that the queries of a block see."""

    full_causal: bool = False
    """Whether queries of layers without a window see only what comes before them in the block."""
    sliding_causal: bool = False
    """The same of layers with a window."""
    from_anchor: bool = False
    """Whether the window of all queries begins where that of the block's first token does, a window's length before it. If not,
    each query sees tokens less than a window's length away."""


class BlockAttention(nn.Module):
    """Attention of one layer. Keys and values come from the context and from the block, queries from the block."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        heads, shared, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.layer_idx, self.scaling = layer, self.size**-0.5
        self.slides = config.layer_types[layer] == "sliding_attention"
        bias = bool(config.attention_bias)
        self.q_proj = nn.Linear(config.hidden_size, heads * self.size, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, shared * self.size, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, shared * self.size, bias=bias)
        self.o_proj = nn.Linear(heads * self.size, config.hidden_size, bias=bias)
        self.q_norm = nn.RMSNorm(self.size, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.size, eps=config.rms_norm_eps)

    def keys_values(self, states_BTH: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of states, (B, G, T, D) each."""
        keys = self.k_norm(self._heads(self.k_proj(states_BTH)))
        return rotated(keys.transpose(1, 2), rotation), self._heads(self.v_proj(states_BTH)).transpose(1, 2)

    def forward(self, states_BTH: torch.Tensor, rotation: Rotation, sight: Sight, write: Write) -> torch.Tensor:
        """Return the attended states (B, T, H) of a block, whose keys and values are written first."""
        queries = rotated(self.q_norm(self._heads(self.q_proj(states_BTH))).transpose(1, 2), rotation)
        keys, values = write(self.layer_idx, *self.keys_values(states_BTH, rotation))
        mask = sight.sliding if self.slides else sight.full
        attended, _ = attend(self, queries, keys, values, mask, self.scaling)
        return self.o_proj(attended.flatten(2))

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(-1, (-1, self.size))


class BlockLayer(nn.Module):
    """One layer: attention and a feed-forward part, each with a norm before it and a residual around it."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = BlockAttention(config, layer), Qwen3MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, states_BTH: torch.Tensor, rotation: Rotation, sight: Sight, write: Write) -> torch.Tensor:
        """Return the block's states after this layer."""
        states_BTH = states_BTH + self.self_attn(self.input_layernorm(states_BTH), rotation, sight, write)
        return states_BTH + self.mlp(self.post_attention_layernorm(states_BTH))


class DFlash(nn.Module):
    """The network without its embedding and its head, which are the target's, or the checkpoint's own.

    Args:
        config: of the layers, as transformers' Qwen3 has it.
        features: size of the features of one token, over all layers of the target that are read.
    """

    def __init__(self, config: Any, features: int) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(features, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        layers = nn.ModuleList(BlockLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.layers = cast(Sequence[BlockLayer], layers)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each layer, or None for a layer without one."""
        return tuple(self.config.sliding_window if layer.self_attn.slides else None for layer in self.layers)

    def fused(self, features_BTF: torch.Tensor) -> torch.Tensor:
        """Return the context (B, T, H) that all layers share, from the target's features (B, T, F)."""
        return self.hidden_norm(self.fc(features_BTF))

    def remember(self, context_BTH: torch.Tensor, positions_BT: torch.Tensor, write: Write) -> None:
        """Write the keys and values of tokens whose context is known, in every layer."""
        rotation = self.rotary_emb(context_BTH, positions_BT)
        for layer in self.layers:
            write(layer.self_attn.layer_idx, *layer.self_attn.keys_values(context_BTH, rotation))

    def forward(
        self, embedded_BTH: torch.Tensor, positions_BT: torch.Tensor, sight: Sight, write: Write
    ) -> torch.Tensor:
        """Return the normed states (B, T, H) of a block: the head gives a distribution for each of them."""
        rotation, states_BTH = self.rotary_emb(embedded_BTH, positions_BT), embedded_BTH
        for layer in self.layers:
            states_BTH = layer(states_BTH, rotation, sight, write)
        return self.norm(states_BTH)


def rotated(states: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Return (B, H, T, D) queries or keys turned by their positions."""
    cos, sin = (part[:, None] for part in rotation)
    return states * cos + rotate_half(states) * sin


def sight(
    key_index_BS: torch.Tensor,
    index_BT: torch.Tensor,
    windows: Sequence[int | None],
    reach: BlockReach,
    dtype: torch.dtype,
) -> Sight:
    """Return the masks of a block.

    Args:
        key_index_BS: place of the token in each slot among its row's tokens, (B, S) or (1, S); negative: none.
        index_BT: places of the block's tokens, the anchor first.
        windows: the sliding window of each layer, or None for a layer without one.
        reach: what queries see.
        dtype: of the masks.
    """
    key_B1S, first_B11, last_B11 = key_index_BS[:, None], index_BT[:, :1, None], index_BT[:, -1:, None]
    known_BTS = ((key_B1S >= 0) & (key_B1S <= last_B11)).expand(-1, index_BT.shape[1], -1)
    window = next((window for window in windows if window is not None), None)
    index_BT1 = index_BT[..., None]
    upto_BTS = known_BTS & (key_B1S <= index_BT1) if reach.full_causal or reach.sliding_causal else known_BTS
    full = _additive(upto_BTS if reach.full_causal else known_BTS, dtype)
    if window is None:
        return Sight(full)
    seen_BTS = upto_BTS if reach.sliding_causal else known_BTS
    if reach.from_anchor:
        return Sight(full, _additive(seen_BTS & (key_B1S >= first_B11 - window), dtype))
    return Sight(full, _additive(seen_BTS & ((key_B1S - index_BT1).abs() < window), dtype))


def _additive(seen_BTS: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    least = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=seen_BTS.device)
    return least.masked_fill(seen_BTS, 0)[:, None]
