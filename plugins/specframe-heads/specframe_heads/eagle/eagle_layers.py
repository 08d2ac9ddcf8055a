"""The transformers of EAGLE heads.

Tensor names carry their shape: B rows, T tokens fed, D the head's hidden size, V_d its vocabulary.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import nn
from transformers import PreTrainedConfig

from specframe_heads.backbone import FAMILIES, Backbone, norm_of
from specframe_heads.head_vocabulary import DraftVocabulary


@attrs.frozen
class Norms:
    """The places of norms that EAGLE-3 heads differ in. The defaults are those of the authors."""

    before_residual: bool = False
    """The residual of the first layer is the normed feature, not the feature."""
    before_fc: bool = False
    """One norm over the hidden states side by side, before they are fused."""
    each: bool = False
    """A norm over each of the hidden states, before they are fused."""
    output: bool = False
    """States are fed back after the final norm, not before."""


class Eagle3(Backbone):
    """The transformer of EAGLE-3: a first layer over embedding and feature side by side, then ordinary layers."""

    def __init__(self, config: PreTrainedConfig, norms: Norms) -> None:
        super().__init__(config)
        family = FAMILIES[str(config.model_type)]
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(family.layer(config, place) for place in range(config.num_hidden_layers))
        self.layers[0].hidden_norm = norm_of(config)
        for name in ("q_proj", "k_proj", "v_proj"):
            usual = getattr(self.layers[0].self_attn, name)
            widened = nn.Linear(2 * config.hidden_size, usual.out_features, bias=usual.bias is not None)
            setattr(self.layers[0].self_attn, name, widened)
        self.norms = norms

    def run(
        self, embeds_BTD: torch.Tensor, features_BTD: torch.Tensor, masks: list[Any], **options: Any
    ) -> torch.Tensor:
        """Return the states before the final norm, (B, T, D)."""
        first: Any = self.layers[0]
        normed_BTD = first.hidden_norm(features_BTD)
        residual_BTD = normed_BTD if self.norms.before_residual else features_BTD
        both_BTD = torch.cat([first.input_layernorm(embeds_BTD), normed_BTD], dim=-1)
        states_BTD = residual_BTD + first.self_attn(both_BTD, attention_mask=masks[0], **options)[0]
        states_BTD = states_BTD + first.mlp(first.post_attention_layernorm(states_BTD))
        for layer, mask in zip(list(self.layers)[1:], masks[1:], strict=True):
            states_BTD = layer(states_BTD, attention_mask=mask, **options)
        return states_BTD


class Eagle1(Backbone):
    """The transformer of EAGLE-1 and EAGLE-2: embedding and feature are fused into the input of ordinary layers.

    Args:
        config: that of the layers.
        bias: whether what fuses them has a bias.
        normed: whether the first layer has a norm of its input, and embeddings one of their own. The authors' have neither.
        qkv_bias: whether queries, keys and values have a bias, and the attention's output has none, as in Qwen2.
    """

    def __init__(self, config: PreTrainedConfig, bias: bool, normed: bool, qkv_bias: bool = False) -> None:
        super().__init__(config)
        family = FAMILIES[str(config.model_type)]
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layers = nn.ModuleList(family.layer(config, place) for place in range(config.num_hidden_layers))
        self.embedding_layernorm: nn.Module = nn.Identity()
        if normed:
            self.embedding_layernorm = norm_of(config)
        else:
            self.layers[0].input_layernorm = nn.Identity()
        if qkv_bias:
            for layer in self.layers:
                for name in ("q_proj", "k_proj", "v_proj"):
                    usual = getattr(layer.self_attn, name)
                    setattr(layer.self_attn, name, nn.Linear(usual.in_features, usual.out_features, bias=True))

    def run(
        self, embeds_BTD: torch.Tensor, features_BTD: torch.Tensor, masks: list[Any], **options: Any
    ) -> torch.Tensor:
        """Return the predicted features, (B, T, D)."""
        states_BTD = self.fc(torch.cat([self.embedding_layernorm(embeds_BTD), features_BTD], dim=-1))
        for layer, mask in zip(self.layers, masks, strict=True):
            states_BTD = layer(states_BTD, attention_mask=mask, **options)
        return states_BTD


class EagleHead(nn.Module):
    """An EAGLE head made for a target: what fuses features, the transformer, and what makes logits of states."""

    backbone: Backbone
    vocabulary: DraftVocabulary

    def __init__(
        self, backbone: Backbone, norm: nn.Module, lm_head: nn.Linear, fusion: nn.Module, fed_back: nn.Module
    ) -> None:
        super().__init__()
        self.backbone, self.norm, self.lm_head, self.fusion, self._fed_back = backbone, norm, lm_head, fusion, fed_back

    def fuse(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return features (B, T, D) from the hidden states of the layers side by side."""
        return self.fusion(states_BTD)

    def logits(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return logits (B, T, V_d) from output states."""
        return self.lm_head(self.norm(states_BTD))

    def fed_back(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return the features of drafted tokens from output states."""
        return self._fed_back(states_BTD)


class Fusion(nn.Module):
    """Makes one feature of the hidden states of several layers: EAGLE-3's ``fc``, with the norms that some files have before it."""

    def __init__(self, config: PreTrainedConfig, sizes: int, count: int, norms: Norms) -> None:
        super().__init__()
        norm = FAMILIES[str(config.model_type)].norm
        eps = config.rms_norm_eps
        self.fc = nn.Linear(count * sizes, config.hidden_size, bias=False)
        self.input_norm: nn.Module = norm(count * sizes, eps=eps) if norms.before_fc else nn.Identity()
        self.fc_norm = nn.ModuleList(norm(sizes, eps=eps) for _ in range(count if norms.each else 0))

    def forward(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return (B, T, D)."""
        states_BTD = self.input_norm(states_BTD)
        if len(self.fc_norm):
            parts = states_BTD.chunk(len(self.fc_norm), dim=-1)
            states_BTD = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(states_BTD)
