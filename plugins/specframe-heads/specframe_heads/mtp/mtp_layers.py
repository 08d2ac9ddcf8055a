"""MTP layers as small transformers, made of the target's own kind of layer.

Tensor names carry their shape: B rows, T tokens fed, D hidden size.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from specframe.errors import ModelError
from specframe_heads.backbone import Backbone
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.target import Target


class MtpBackbone(Backbone):
    """One MTP layer: eh_proj(cat[enorm(e), hnorm(h)]), then a decoder layer, then a norm.

    Args:
        config: that of the block, see :func:`block_config`.
        target: whose embedding, rotary factors and kind of norm it has.
    """

    def __init__(self, config: Any, target: Target) -> None:
        super().__init__(config)
        decoder = decoder_of(target)
        norm = type(decoder.norm)
        self.enorm, self.hnorm, self.post_norm = (norm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([type(decoder.layers[-1])(config, 0)])
        self._hidden_first = bool(getattr(config, "mtp_hidden_states_first", False))

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True  # its block is of the target's class, which runs experts in the way that the configuration says

    def borrow(self, target: Target) -> None:
        """Take the target's embedding and rotary factors."""
        self.embed_tokens = cast(nn.Embedding, target.model.get_input_embeddings())
        rotary = decoder_of(target).rotary_emb
        if "layer_type" in inspect.signature(rotary.forward).parameters:
            self.__dict__["rotary_emb"] = functools.partial(rotary, layer_type=self.config.layer_types[0])
        else:
            self.rotary_emb = rotary

    def run(
        self, embeds_BTD: torch.Tensor, features_BTD: torch.Tensor, masks: list[Any], **options: Any
    ) -> torch.Tensor:
        """Return the normed output states, (B, T, D)."""
        pair = [self.enorm(embeds_BTD), self.hnorm(features_BTD)]
        joined_BTD = self.eh_proj(torch.cat(pair[::-1] if self._hidden_first else pair, dim=-1))
        output = self.layers[0](joined_BTD, attention_mask=masks[0], **options)
        return self.post_norm(output[0] if isinstance(output, tuple) else output)


class MtpHead(nn.Module):
    """The MTP layers of a target, one after the other: layer j drafts token j."""

    vocabulary: DraftVocabulary

    def __init__(self, backbones: list[MtpBackbone], target: Target) -> None:
        super().__init__()
        self.backbones = cast(Sequence[MtpBackbone], nn.ModuleList(backbones))
        self.lm_head = target.model.get_output_embeddings()
        self.vocabulary = DraftVocabulary(None, target.vocabulary)

    @property
    def backbone(self) -> MtpBackbone:
        """The first layer."""
        return self.backbones[0]

    def fuse(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return the target's last hidden states as they are."""
        return states_BTD

    def logits(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return the target's logits of output states, (B, T, V)."""
        return self.lm_head(states_BTD)

    def fed_back(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return output states as the features of drafted tokens."""
        return states_BTD


def decoder_of(target: Target) -> Any:
    """Return the target's stack of layers; raise :class:`ModelError` where MTP layers cannot be made like its own."""
    decoder: Any = target.model.get_decoder()
    if not all(hasattr(decoder, part) for part in ("layers", "norm", "rotary_emb")):
        raise ModelError(
            f"the target ({type(target.model).__name__}) has no layers that MTP layers can be made like: expected a decoder with "
            "layers, a norm and rotary_emb, as DeepSeek-V3, GLM-4.5 and Qwen3 have"
        )
    return decoder


def block_config(target: Target) -> Any:
    """Return the configuration of one decoder layer of the target's kind, which is a mixture of experts where some layers are."""
    config: Any = copy.deepcopy(target.model.config.get_text_config())
    config.num_hidden_layers = 1
    if kinds := getattr(config, "layer_types", None):
        given = getattr(config, "mtp_layer_types", None) or [
            "full_attention" if "full_attention" in kinds else kinds[-1]
        ]
        config.layer_types = [given[0]]
    if kinds := getattr(config, "mlp_layer_types", None):
        config.mlp_layer_types = [(getattr(config, "mtp_mlp_layer_types", None) or kinds)[-1]]
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    return config
