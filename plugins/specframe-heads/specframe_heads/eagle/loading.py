"""EAGLE heads from their checkpoints: tensors by the names of each format, put into one kind of modules.

Tensor names carry their shape: V tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from specframe.errors import ModelError
from specframe_heads.backbone import FAMILIES, Backbone, configured, filled
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.eagle.model import Eagle1, Eagle3, EagleHead, Fusion, Norms
from specframe_heads.formats.format import Format
from specframe_heads.target import Target, require_hidden, require_vocabulary
from specframe_heads.vocabulary import DraftVocabulary

Tensors = dict[str, torch.Tensor]

NOT_LAYERS = ("eagle_config", "draft_vocab_size", "target_hidden_size", "norm_before_residual", "bias")
"""Keys of the authors' configurations that are not about the layers."""


def speculators_3(checkpoint: Checkpoint, format: Format, target: Target) -> EagleHead:
    """Return an EAGLE-3 head from a checkpoint of `speculators`."""
    config = checkpoint.config
    layers = configured(str(checkpoint), config.get("transformer_layer_config"), target.context)
    norms = Norms(
        before_residual=bool(config.get("norm_before_residual", False)),
        before_fc=bool(config.get("norm_before_fc", False)),
        each=bool(config.get("fc_norm", False)),
        output=bool(config.get("norm_output", False)),
    )
    return eagle_3(checkpoint, format, target, layers, norms, checkpoint.load())


def authors_3(checkpoint: Checkpoint, format: Format, target: Target) -> EagleHead:
    """Return an EAGLE-3 head from a checkpoint in the authors' layout: its first layer is called ``midlayer``."""
    layers = configured(str(checkpoint), layers_of(checkpoint.config), target.context)
    renamed = {name.replace("midlayer.", "layers.0.", 1): tensor for name, tensor in checkpoint.load().items()}
    norms = Norms(before_residual=bool(checkpoint.config.get("norm_before_residual", False)))
    return eagle_3(checkpoint, format, target, layers, norms, renamed)


def eagle_3(
    checkpoint: Checkpoint, format: Format, target: Target, config: PreTrainedConfig, norms: Norms, tensors: Tensors
) -> EagleHead:
    """Return an EAGLE-3 head.

    Raises:
        ModelError: the head does not fit the target, or its tensors do not fit its configuration.
    """
    whose, count = str(checkpoint), len(format.ids(checkpoint, target.layers))
    require_hidden(whose, int(checkpoint.config.get("target_hidden_size") or config.hidden_size), target)
    require_vocabulary(whose, int(config.vocab_size), target)
    with_embedding(whose, tensors, config, target)
    with torch.device("meta"):
        backbone, fusion = Eagle3(config, norms), Fusion(config, target.hidden, count, norms)
        norm = FAMILIES[str(config.model_type)].norm(config.hidden_size, eps=config.rms_norm_eps)
    fusion = put(whose, fusion, tensors, target)
    norm, lm_head = put(whose, norm, under(tensors, "norm."), target), linear(whose, tensors, config, target)
    vocabulary = DraftVocabulary.of(
        whose, lm_head.out_features, int(config.vocab_size), target.vocabulary, tensors.get("d2t")
    )
    head = EagleHead(
        ready(whose, backbone, tensors, target), norm, lm_head, fusion, norm if norms.output else nn.Identity()
    )
    head.vocabulary = vocabulary.to(target.device)
    return head.eval()


def speculators_1(checkpoint: Checkpoint, format: Format, target: Target) -> EagleHead:
    """Return an EAGLE-1 head from a checkpoint of `speculators` up to 0.2."""
    config = checkpoint.config
    layers = configured(str(checkpoint), config.get("transformer_layer_config"), target.context)
    old, new = ("fusion_fc.", "transformer.", "pre_lm_head_layernorm."), ("fc.", "layers.0.", "norm.")
    tensors = checkpoint.load()
    for before, after in zip(old, new, strict=True):
        tensors = {
            name.replace(before, after, 1) if name.startswith(before) else name: one for name, one in tensors.items()
        }
    return eagle_1(
        checkpoint,
        target,
        layers,
        bool(config.get("fusion_bias", False)),
        bool(config.get("layernorms", False)),
        tensors,
    )


def authors_1(checkpoint: Checkpoint, format: Format, target: Target) -> EagleHead:
    """Return an EAGLE-1 or EAGLE-2 head from a checkpoint in the authors' layout."""
    tensors = {name.removeprefix("model."): tensor for name, tensor in checkpoint.load().items()}
    layers = {**layers_of(checkpoint.config), "num_hidden_layers": depth_of(tensors)}
    bias = bool(checkpoint.config.get("bias", True)) and "fc.bias" in tensors
    return eagle_1(checkpoint, target, configured(str(checkpoint), layers, target.context), bias, False, tensors)


def eagle_1(
    checkpoint: Checkpoint, target: Target, config: PreTrainedConfig, bias: bool, normed: bool, tensors: Tensors
) -> EagleHead:
    """Return an EAGLE-1 head; ``normed``: it has the norms that `speculators` had for it."""
    whose = str(checkpoint)
    require_hidden(whose, int(config.hidden_size), target)
    require_vocabulary(whose, int(config.vocab_size), target)
    with_embedding(whose, tensors, config, target)
    norm: nn.Module = nn.Identity()
    with torch.device("meta"):
        backbone = Eagle1(config, bias, normed)
        if normed:
            norm = FAMILIES[str(config.model_type)].norm(config.hidden_size, eps=config.rms_norm_eps)
    norm = put(whose, norm, under(tensors, "norm."), target)
    lm_head = linear(whose, tensors, config, target)
    head = EagleHead(ready(whose, backbone, tensors, target), norm, lm_head, nn.Identity(), norm)
    head.vocabulary = DraftVocabulary.of(whose, lm_head.out_features, int(config.vocab_size), target.vocabulary, None)
    return head.eval()


def layers_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration in the authors' layout says of the layers: it is that of the model that they are taken from."""
    return {key: value for key, value in config.items() if key not in NOT_LAYERS}


def depth_of(tensors: Mapping[str, Any]) -> int:
    """Return the number of layers that tensors are of; configurations were copied from targets, which have more."""
    numbers = {int(name.split(".")[1]) for name in tensors if name.startswith("layers.")}
    return 1 + max(numbers, default=0)


def under(tensors: Mapping[str, torch.Tensor], prefix: str) -> Tensors:
    """Return the tensors of one module, by their names within it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def with_embedding(whose: str, tensors: Tensors, config: PreTrainedConfig, target: Target) -> None:
    """Put the target's embedding among the tensors where they have none."""
    if "embed_tokens.weight" not in tensors:
        weight_VD = target.embedding(whose, int(config.hidden_size))
        tensors["embed_tokens.weight"] = weight_VD
        config.vocab_size = len(weight_VD)


def put(whose: str, module: nn.Module, tensors: Mapping[str, torch.Tensor], target: Target) -> Any:
    """Put tensors into a module, on the target's device and in its precision."""
    return filled(whose, module, tensors, target.device, target.dtype)


def ready(whose: str, backbone: Backbone, tensors: Mapping[str, torch.Tensor], target: Target) -> Backbone:
    """Return a transformer with its tensors and rotary factors."""
    backbone = put(whose, backbone, tensors, target)
    backbone.rotary_emb = FAMILIES[str(backbone.config.model_type)].rotary(config=backbone.config).to(target.device)
    return backbone.eval()


def linear(whose: str, tensors: Mapping[str, torch.Tensor], config: PreTrainedConfig, target: Target) -> nn.Linear:
    """Return what makes logits: the head's own, or else the target's."""
    weight_VD = tensors.get("lm_head.weight")
    if weight_VD is None:
        weight_VD = target.head(whose, int(config.hidden_size))
    if weight_VD.ndim != 2 or weight_VD.shape[1] != config.hidden_size:
        raise ModelError(
            f"the tensor 'lm_head.weight' of {whose}: expected shape (tokens, {config.hidden_size}), got {tuple(weight_VD.shape)}"
        )
    with torch.device("meta"):
        made = nn.Linear(weight_VD.shape[1], weight_VD.shape[0], bias=False)
    return put(whose, made, {"weight": weight_VD}, target)
