"""Targets with random MTP layers in their checkpoint, under the names of each layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from specframe_heads.mtp.mtp_layers import block_config
from specframe_heads.target import Target
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    PreTrainedModel,
)

from specframe_testing import zoo
from specframe_testing.heads.checkpoints import plant_step, random_tensors, save

SHARED: dict[str, Any] = {
    "vocab_size": zoo.VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "max_position_embeddings": zoo.CONTEXT, "initializer_range": zoo.WIDTH, "bos_token_id": None,
    "eos_token_id": zoo.EOS, "pad_token_id": zoo.EOS,
}  # fmt: skip


CONFIG: dict[str, Any] = {
    "speculators_model_type": "mtp",
    "num_nextn_predict_layers": 1,
    "transformer_layer_config": {},
}
"""The configuration of one layer in the format of ``speculators``; its sizes are the target's."""


def deepseek(layers: int = 1) -> PreTrainedModel:
    """Return a small DeepSeek-V3 with ``layers`` MTP layers in its configuration."""
    sizes: dict[str, Any] = {
        "kv_lora_rank": 8,
        "q_lora_rank": 12,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 6,
        "num_nextn_predict_layers": layers,
    }
    config = DeepseekV3Config(**SHARED, **sizes, num_key_value_heads=4)
    return seeded(lambda: DeepseekV3ForCausalLM(config))


def glm(layers: int = 1) -> PreTrainedModel:
    """Return a small GLM-4.5 with ``layers`` MTP layers in its configuration."""
    further: dict[str, Any] = {"head_dim": 8, "num_nextn_predict_layers": layers}
    config = Glm4MoeConfig(**SHARED, **further, num_key_value_heads=2)
    return seeded(lambda: Glm4MoeForCausalLM(config))


def seeded(make: Any) -> PreTrainedModel:
    """Return a model, the same one each time."""
    with zoo.quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().eval()


def parts(target: PreTrainedModel, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the random tensors of one MTP layer: enorm, hnorm, eh_proj, post_norm, and those of its block, experts one by one."""
    return apart(random_tensors(layer_shapes(target), seed))


def layer_shapes(target: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of one MTP layer, those of its experts together."""
    facts, decoder = Target(target), target.get_decoder()
    size = facts.hidden
    with torch.device("meta"):
        block = type(decoder.layers[-1])(block_config(facts), 0)
    shapes = {f"block.{name}": tuple(one.shape) for name, one in block.state_dict().items()}
    shapes |= {f"{name}.weight": (size,) for name in ("enorm", "hnorm", "post_norm")} | {
        "eh_proj.weight": (size, 2 * size)
    }
    return shapes


def apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors with those of experts one by one, as they are published."""
    made = dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for number, one in enumerate(tensor):
                gate, up = one.chunk(2)
                at = name.replace("gate_up_proj", f"{number}.")
                made |= {f"{at}gate_proj.weight": gate, f"{at}up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            made |= {name.replace("down_proj", f"{number}.down_proj.weight"): one for number, one in enumerate(tensor)}
        else:
            made[name] = tensor
    return made


def after(name: str, number: int, count: int) -> str:
    """Return DeepSeek-V3's name of a part of a layer."""
    name = name.removeprefix("block.").replace("post_norm", "shared_head.norm")
    return f"model.layers.{count + number}.{name}"


def beside(name: str, number: int, count: int) -> str:
    """Return Qwen3-Next's name of a part of a layer."""
    name = name.replace("block.", f"layers.{number}.").replace("eh_proj", "fc").replace("post_norm", "norm")
    return "mtp." + name.replace("enorm", "pre_fc_norm_embedding").replace("hnorm", "pre_fc_norm_hidden")


def of_speculators(name: str, number: int, count: int) -> str:
    """Return the name of a part of a layer in the format of ``speculators``."""
    name = name.removeprefix("block.").replace("eh_proj", "input_proj").replace("post_norm", "final_layernorm")
    return f"mtp_layers.{number}." + name.replace("enorm", "token_layernorm").replace("hnorm", "hidden_layernorm")


LAYOUTS = {"after": after, "beside": beside}


def save_target(folder: Path, target: PreTrainedModel, layout: str, layers: int = 1) -> PreTrainedModel:
    """Save a target with MTP layers in its checkpoint; return it as it is loaded from there."""
    target.save_pretrained(folder)
    tensors, count = load_file(folder / "model.safetensors"), target.config.num_hidden_layers
    for number in range(layers):
        more = {LAYOUTS[layout](name, number, count): one for name, one in parts(target, number).items()}
        tensors |= {
            name: one.contiguous()
            for name, one in more.items()
            if number == 0 or layout == "after" or ".layers." in name
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with zoo.quiet():
        return AutoModelForCausalLM.from_pretrained(folder).eval()


def planted(folder: Path, target: PreTrainedModel) -> Path:
    """Save an MTP layer in the format of ``speculators`` that continues a planted target without an error.

    It reads the mark in the last hidden state, and moves it to that of the token after. What the target's final norm has left of
    other parts makes a true mark smaller than one that is fed back: the old mark then ends below zero, which no logit looks at.
    """
    config = target.config
    size, tokens, last = config.hidden_size, config.vocab_size, config.num_hidden_layers
    tensors = {name: torch.zeros_like(one) for name, one in parts(target).items()}
    tensors |= {name: torch.ones_like(one) for name, one in tensors.items() if "norm" in name}
    part = torch.arange(last * tokens, (last + 1) * tokens)
    tensors["eh_proj.weight"][part, size + part] = 1.0
    plant_step(tensors, "block.mlp.", target, size**0.5)
    return save(folder, CONFIG, {of_speculators(name, 0, 0): one for name, one in tensors.items()})


def save_file_of(folder: Path, target: PreTrainedModel, layers: int = 1) -> str:
    """Save MTP layers in the format of ``speculators``; return the folder."""
    tensors = {
        of_speculators(name, number, 0): one for number in range(layers) for name, one in parts(target, number).items()
    }
    return str(save(folder, {**CONFIG, "num_nextn_predict_layers": layers}, tensors))
