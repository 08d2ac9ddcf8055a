"""EAGLE heads from their checkpoints: tensors by the names of each format, put into one kind of modules.

Tensor names carry their shape: V tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from specframe.errors import ModelError
from specframe_heads.backbone import configured, made, norm_of, rotary_of
from specframe_heads.checkpoint import Checkpoint, number
from specframe_heads.eagle.eagle_layers import Eagle1, Eagle3, EagleHead, Fusion, Norms
from specframe_heads.formats.format import Format
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.target import Target, require_hidden, require_vocabulary
from specframe_heads.tensors import Tensors

LAYERS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "hidden_act", "rms_norm_eps", "vocab_size",
    "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias",
)  # fmt: skip
"""The keys of the authors' configurations that are about the layers. The others are those of the model that a configuration was
copied from: its model_type, its number of layers, its sliding window."""


def speculators_3(checkpoint: Checkpoint, format: Format, target: Target, tensors: Tensors) -> EagleHead:
    """Return an EAGLE-3 head from a checkpoint of `speculators`."""
    config = checkpoint.config
    layers = configured(str(checkpoint), config.get("transformer_layer_config"), target.context)
    norms = Norms(
        before_residual=bool(config.get("norm_before_residual", False)),
        before_fc=bool(config.get("norm_before_fc", False)),
        each=bool(config.get("fc_norm", False)),
        output=bool(config.get("norm_output", False)),
    )
    return eagle_3(checkpoint, format, target, layers, norms, tensors)


def authors_3(checkpoint: Checkpoint, format: Format, target: Target, tensors: Tensors) -> EagleHead:
    """Return an EAGLE-3 head from a checkpoint in the authors' layout: its first layer is called ``midlayer``."""
    tensors = tensors.renamed(lambda name: name.replace("midlayer.", "layers.0.", 1))
    norms = Norms(before_residual=bool(checkpoint.config.get("norm_before_residual", False)))
    return eagle_3(checkpoint, format, target, layers_of(checkpoint, target, tensors), norms, tensors)


def modelopt_3(checkpoint: Checkpoint, format: Format, target: Target, tensors: Tensors) -> EagleHead:
    """Return an EAGLE-3 head from a checkpoint that ModelOpt exported."""
    return eagle_3(checkpoint, format, target, layers_of(checkpoint, target, tensors), Norms(), tensors)


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
    tensors = with_embedding(whose, tensors, config, target)
    fusion = made(whose, lambda: Fusion(config, target.hidden, count, norms), tensors, target)
    norm = made(whose, lambda: norm_of(config), tensors.under("norm."), target)
    lm_head = linear(whose, tensors, config, target)
    vocabulary = DraftVocabulary.of(
        whose, lm_head.out_features, int(config.vocab_size), target.vocabulary, tensors.get("d2t")
    )
    backbone = made(whose, lambda: Eagle3(config, norms), tensors, target)
    backbone.rotary_emb = rotary_of(config, target.device)
    head = EagleHead(backbone, norm, lm_head, fusion, norm if norms.output else nn.Identity())
    head.vocabulary = vocabulary.to(target.device)
    return head.eval()


def speculators_1(checkpoint: Checkpoint, format: Format, target: Target, tensors: Tensors) -> EagleHead:
    """Return an EAGLE-1 head from a checkpoint of `speculators` up to 0.2, whose positions are turned by the target's factors."""
    config, whose = checkpoint.config, str(checkpoint)
    layers = configured(whose, with_rope_of(target, config.get("transformer_layer_config")), target.context)
    names = {"fusion_fc.": "fc.", "transformer.": "layers.0.", "pre_lm_head_layernorm.": "norm."}

    def own(name: str) -> str:
        before = next((one for one in names if name.startswith(one)), "")
        return names.get(before, "") + name.removeprefix(before)

    bias, normed = bool(config.get("fusion_bias", False)), bool(config.get("layernorms", False))
    return eagle_1(checkpoint, target, layers, bias, normed, tensors.renamed(own))


def authors_1(checkpoint: Checkpoint, format: Format, target: Target, tensors: Tensors) -> EagleHead:
    """Return an EAGLE-1 or EAGLE-2 head from a checkpoint in the authors' layout."""
    tensors = tensors.renamed(lambda name: name.removeprefix("model."))
    config = layers_of(checkpoint, target, tensors)
    bias = bool(checkpoint.config.get("bias", True)) and "fc.bias" in tensors
    return eagle_1(checkpoint, target, config, bias, False, tensors, bool(checkpoint.config.get("qkv_bias", False)))


def eagle_1(
    checkpoint: Checkpoint,
    target: Target,
    config: PreTrainedConfig,
    bias: bool,
    normed: bool,
    tensors: Tensors,
    qkv_bias: bool = False,
) -> EagleHead:
    """Return an EAGLE-1 head, see :class:`specframe_heads.eagle.eagle_layers.Eagle1`."""
    whose = str(checkpoint)
    require_hidden(whose, int(config.hidden_size), target)
    require_vocabulary(whose, int(config.vocab_size), target)
    tensors = with_embedding(whose, tensors, config, target)
    norm = made(whose, lambda: norm_of(config), tensors.under("norm."), target) if normed else nn.Identity()
    lm_head = linear(whose, tensors, config, target)
    backbone = made(whose, lambda: Eagle1(config, bias, normed, qkv_bias), tensors, target)
    backbone.rotary_emb = rotary_of(config, target.device)
    head = EagleHead(backbone, norm, lm_head, nn.Identity(), norm)
    head.vocabulary = DraftVocabulary.of(whose, lm_head.out_features, int(config.vocab_size), target.vocabulary, None)
    return head.eval()


def layers_of(checkpoint: Checkpoint, target: Target, tensors: Tensors) -> PreTrainedConfig:
    """Return the configuration of the layers in the authors' layouts: those of Llama, whatever model the file names.

    A configuration there is often a copy of the target's, so the tensors say how many layers there are, how large an attention head
    is, and whether keys and queries have norms, as Qwen3's have and the authors' code has not.
    """
    given = {key: value for key in LAYERS if (value := checkpoint.config.get(key)) is not None}
    normed = "layers.0.self_attn.q_norm.weight" in tensors
    given |= {"model_type": "qwen3" if normed else "llama", "num_hidden_layers": depth_of(tensors)}
    heads, joined = number(given, "num_attention_heads"), tensors.shape("layers.0.self_attn.o_proj.weight")
    if heads and joined:
        given["head_dim"] = joined[-1] // heads
    given.setdefault("num_key_value_heads", heads)
    # the authors' code reads neither
    for key, of in (
        ("attention_bias", "self_attn.o_proj"),
        ("mlp_bias", "mlp.down_proj"),
    ):
        given[key] = bool(given.get(key)) and f"layers.0.{of}.bias" in tensors
    return configured(str(checkpoint), given, target.context)


def with_rope_of(target: Target, given: Any) -> Any:
    """Return a configuration of layers with the target's rotary factors, where it is one."""
    rope = getattr(target.model.config.get_text_config(), "rope_parameters", None)
    if not isinstance(given, Mapping) or not rope:
        return given
    others = {
        key: value for key, value in given.items() if key not in ("rope_theta", "rope_scaling", "rope_parameters")
    }
    return {**others, "rope_parameters": dict(rope)}


def depth_of(tensors: Iterable[str]) -> int:
    """Return the number of layers that tensors are of; configurations were copied from targets, which have more."""
    numbers = {int(name.split(".")[1]) for name in tensors if name.startswith("layers.")}
    return 1 + max(numbers, default=0)


def with_embedding(whose: str, tensors: Tensors, config: PreTrainedConfig, target: Target) -> Tensors:
    """Return the tensors with the target's embedding among them where they have none."""
    if "embed_tokens.weight" in tensors:
        return tensors
    weight_VD = target.embedding(whose, int(config.hidden_size))
    config.vocab_size = len(weight_VD)
    return tensors.borrowing("embed_tokens.weight", weight_VD)


def linear(whose: str, tensors: Mapping[str, torch.Tensor], config: PreTrainedConfig, target: Target) -> nn.Linear:
    """Return what makes logits: the head's own, or else the target's."""
    weight_VD = tensors.get("lm_head.weight")
    if weight_VD is None:
        weight_VD = target.head(whose, int(config.hidden_size))
    if weight_VD.ndim != 2 or weight_VD.shape[1] != config.hidden_size:
        raise ModelError(
            f"the tensor 'lm_head.weight' of {whose}: expected shape (tokens, {config.hidden_size}), got {tuple(weight_VD.shape)}"
        )
    vocabulary, size = weight_VD.shape
    found: nn.Linear = made(whose, lambda: nn.Linear(size, vocabulary, bias=False), {"weight": weight_VD}, target)
    return found
