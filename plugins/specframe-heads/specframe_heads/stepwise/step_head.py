"""The heads as the drafter runs them: steps, and the transformer layers that some have before them.

These are Hydra++'s prefix layer, Clover's augmenting block and Clover-2's two layers.

Tensor names: B rows, T tokens fed, D size of a feature.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig

from specframe.models.layer_configs import layer_configs
from specframe_heads.backbone import FAMILIES, Backbone, norm_of
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.stepwise.steps import Cosine, Steps
from specframe_heads.target import Target


class HeadLayers(Backbone):
    """Ordinary layers over features.

    Args:
        config: theirs; its vocabulary is the target's.
        norm: whether a norm follows the last layer.
        enter: whether each feature takes in the token after it by a gate first, as in Clover-2.
    """

    def __init__(self, config: PreTrainedConfig, norm: bool, enter: bool = False) -> None:
        super().__init__(config)
        family = FAMILIES[str(config.model_type)]
        size, eps = config.hidden_size, config.rms_norm_eps
        self.embed_tokens = torch.nn.Embedding(config.vocab_size, size)
        self.enter = Cosine(size, config.num_attention_heads, eps) if enter else None
        self.layers = torch.nn.ModuleList(family.layer(config, place) for place in range(config.num_hidden_layers))
        self.norm = norm_of(config) if norm else torch.nn.Identity()
        self.rotary_emb = family.rotary(config=config)

    def run(
        self, embeds_BTD: torch.Tensor, features_BTD: torch.Tensor, masks: list[Any], **options: Any
    ) -> torch.Tensor:
        """Return the first states of the steps, (B, T, D)."""
        states_BTD = features_BTD if self.enter is None else self.enter(features_BTD, embeds_BTD)
        for layer, mask in zip(self.layers, masks, strict=True):
            states_BTD = layer(states_BTD, attention_mask=mask, **options)
        return self.norm(states_BTD)


class StepHead(torch.nn.Module):
    """The steps, the layers before them, and the vocabulary of both.

    Args:
        steps: from state to state.
        vocabulary: of the logits.
        backbone: makes the first state of the features so far, or None if it is the last feature itself.
    """

    def __init__(self, steps: Steps, vocabulary: DraftVocabulary, backbone: HeadLayers | None = None) -> None:
        super().__init__()
        self.steps, self.vocabulary, self.backbone = steps, vocabulary, backbone

    def fuse(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return the hidden states as they are."""
        return states_BTD

    def states(self, features_BTD: torch.Tensor, ids_BT: torch.Tensor) -> torch.Tensor:
        """Return the first states of whole texts, (B, T, D), from features and the tokens after them: for training."""
        if self.backbone is None:
            return features_BTD
        return self.backbone(ids_BT, features=features_BTD).logits


def sizes(target: Target) -> dict[str, Any]:
    """Return the configuration of a layer of the Llama kind with the sizes of a target's last layer."""
    config = layer_configs(target.model.config.get_text_config())[-1]
    rope = getattr(config, "rope_parameters", None) or {}
    heads = int(getattr(config, "num_attention_heads", 4))
    return {
        "model_type": "llama",
        "vocab_size": target.vocabulary,
        "hidden_size": target.hidden,
        "intermediate_size": int(getattr(config, "intermediate_size", None) or 4 * target.hidden),
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": int(getattr(config, "num_key_value_heads", None) or heads),
        "head_dim": int(getattr(config, "head_dim", None) or target.hidden // heads),
        "hidden_act": "silu",
        "rms_norm_eps": float(getattr(config, "rms_norm_eps", 1e-6)),
        "max_position_embeddings": target.context or 2048,
        "rope_theta": float(rope.get("rope_theta", 10000.0)),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
