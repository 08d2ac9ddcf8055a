"""Small transformers of heads, made of transformers' own layers, so that they run as any model of specframe does.

Tensor names carry their shape: B rows, T tokens fed, D size of the head's states.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import Cache, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from specframe.errors import ModelError, sentence
from specframe_heads.target import Target
from specframe_heads.tensors import require_weights


class Family(NamedTuple):
    """The parts that heads of one family of models are made of."""

    config: type[PreTrainedConfig]
    layer: type[nn.Module]
    norm: type[nn.Module]
    rotary: type[nn.Module]


FAMILIES: Mapping[str, Family] = {
    "llama": Family(llama.LlamaConfig, llama.LlamaDecoderLayer, llama.LlamaRMSNorm, llama.LlamaRotaryEmbedding),
    "qwen3": Family(qwen3.Qwen3Config, qwen3.Qwen3DecoderLayer, qwen3.Qwen3RMSNorm, qwen3.Qwen3RotaryEmbedding),
}


def configured(whose: str, given: Any, context: int = 0) -> PreTrainedConfig:
    """Return the configuration of a head's layers.

    Args:
        whose: the head, for errors.
        given: as a checkpoint has it, a dict with a ``model_type``; "rope_theta" may be within ``rope_parameters`` or not.
        context: the target's, which the head's covers in any case: its positions are those of the target's tokens.

    Raises:
        ModelError: it is no such dict, or of a family whose layers are not known here.
    """
    if not isinstance(given, Mapping):
        raise ModelError(
            f"the configuration of {whose}: expected an object with the sizes of its layers, got {given!r}"
        )
    kind = str(given.get("model_type") or "llama")
    if kind not in FAMILIES:
        raise ModelError(f"{whose} has layers of the family {kind!r}: expected one of {', '.join(FAMILIES)}")
    dropped = (
        "model_type",
        "architectures",
        "torch_dtype",
        "dtype",
        "quantization_config",
        "auto_map",
        "transformers_version",
    )
    options = {key: value for key, value in given.items() if key not in dropped}
    try:
        config = FAMILIES[kind].config(**copy.deepcopy(options))
    except Exception as error:  # transformers checks configurations in ways that depend on its release
        raise ModelError(f"the configuration of {whose} is refused by transformers: {sentence(error)}") from error
    config.max_position_embeddings = max(int(config.max_position_embeddings), context)
    return config


class States(NamedTuple):
    """The output of a head's transformer, with the members that are read of transformers' outputs.

    A tuple, since each of the small forwards of a draft makes one: transformers' own outputs take a twentieth of such a forward.
    """

    logits: torch.Tensor
    """Output states, (B, T, D)."""
    past_key_values: Cache | None


class Backbone(PreTrainedModel):
    """Base of heads' transformers: token ids and features in, states out.

    It is fed as a causal language model is: with positions, masks and a cache. Its ``logits``
    are output states (B, T, D). A subclass has ``layers`` and :meth:`run`.
    """

    config_class = PreTrainedConfig
    _supports_sdpa = True
    _supports_attention_backend = True

    layers: nn.ModuleList
    rotary_emb: nn.Module
    embed_tokens: nn.Embedding

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: Any = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        features: torch.Tensor | None = None,
        **options: Any,
    ) -> States:
        """Return output states as ``logits``, (B, T, D).

        Args:
            input_ids, attention_mask, position_ids, past_key_values, use_cache: those of transformers.
            features: (B, T, D), or None for the embeddings in their place, where the model is checked before its use.
        """
        embeds_BTD = self.embed_tokens(input_ids)
        given_BTD = embeds_BTD[..., : self.feature_size] if features is None else features.to(embeds_BTD.dtype)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        masks = self._masks(attention_mask, embeds_BTD, past_key_values, position_ids)
        sections = hasattr(self.rotary_emb, "mrope_section")  # three positions of each token, equal ones in texts
        rotary = self.rotary_emb(embeds_BTD, position_ids.expand(3, *position_ids.shape) if sections else position_ids)
        shared = {"position_ids": position_ids, "past_key_values": past_key_values, "use_cache": use_cache}
        states_BTD = self.run(embeds_BTD, given_BTD, masks, position_embeddings=rotary, **shared)
        return States(states_BTD, past_key_values)

    @property
    def feature_size(self) -> int:
        """The size of the features that it is fed."""
        return int(self.config.hidden_size)

    def run(
        self, embeds_BTD: torch.Tensor, features_BTD: torch.Tensor, masks: list[Any], **options: Any
    ) -> torch.Tensor:
        """Return the output states, (B, T, D), from embeddings and features.

        Args:
            masks: the attention mask of each layer.
            options: further arguments of each layer.
        """
        raise NotImplementedError

    def _masks(self, given: Any, embeds_BTD: torch.Tensor, cache: Any, position_ids: torch.Tensor) -> list[Any]:
        """Return each layer's mask; those that are not given are made as transformers' models make theirs."""
        kinds = getattr(self.config, "layer_types", None) or ["all"] * len(self.layers)
        if isinstance(given, dict):
            return [given[kind] for kind in kinds]
        if given is not None and given.ndim == 4:
            return [given] * len(kinds)
        windowed = ["sliding_attention"]
        windowed += ["all"] if getattr(self.config, "sliding_window", None) else []
        asked = {
            "config": self.config,
            "inputs_embeds": embeds_BTD,
            "attention_mask": given,
            "past_key_values": cache,
            "position_ids": position_ids,
        }
        made = {
            kind: (create_sliding_window_causal_mask if kind in windowed else create_causal_mask)(**asked)
            for kind in set(kinds)
        }
        return [made[kind] for kind in kinds]


def norm_of(config: PreTrainedConfig) -> nn.Module:
    """Return a new norm of a head's states."""
    return FAMILIES[str(config.model_type)].norm(config.hidden_size, eps=config.rms_norm_eps)


def rotary_of(config: PreTrainedConfig, device: torch.device) -> nn.Module:
    """Return what turns queries and keys by their positions. It is in no file, and made on the device "meta" it has no factors."""
    return FAMILIES[str(config.model_type)].rotary(config=config).to(device)


def made(whose: str, make: Callable[[], nn.Module], tensors: Mapping[str, torch.Tensor], target: Target) -> Any:
    """Return a new module with a checkpoint's tensors, see :func:`filled`."""
    with torch.device("meta"):
        module = make()
    return filled(whose, module, tensors, target)


def filled(whose: str, module: nn.Module, tensors: Mapping[str, torch.Tensor], target: Target) -> Any:
    """Put a checkpoint's tensors into a module that was made on the device "meta", and return it, ready for inference on the
    target's device and in its precision.

    Raises:
        ModelError: tensors are missing or quantised, or have another shape than the configuration says.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    if missing := sorted(wanted.keys() - tensors.keys()):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"{whose} lacks the tensor {missing[0]!r}{more}: expected {len(wanted)} tensors for its configuration"
        )
    given = {name: tensors[name] for name in wanted}
    for name, tensor in given.items():
        require_weights(whose, name, tensor)
        if tuple(tensor.shape) != wanted[name]:
            raise ModelError(
                f"the tensor {name!r} of {whose}: expected shape {wanted[name]}, as its configuration says, got "
                f"{tuple(tensor.shape)}"
            )
    taken = {
        name: nn.Parameter(tensor.to(target.device, target.dtype), requires_grad=False)
        for name, tensor in given.items()
    }
    module.load_state_dict(taken, assign=True)
    return module.eval()
