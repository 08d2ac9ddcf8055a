"""Heads written as their formats have them: the names of :mod:`specframe_heads.stepwise.tensor_names`, the other way round."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specframe_heads.stepwise.step_head import StepHead
from specframe_heads.stepwise.tensor_names import Rules
from specframe_heads.target import Target

MEDUSA: Rules = ((r"blocks\.(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2."),)
"""vLLM's names."""
MEDUSA_AUTHORS: Rules = ((r"blocks\.(\d+)\.(\d+)\.linear\.", r"\1.\2.linear."), (r"lm_heads\.(\d+)\.", r"\1.1."))
"""The authors', of heads with one block."""
HYDRA: Rules = (
    (r"blocks\.(\d+)\.(\d+)\.linear\.", r"hydra_mlp.\1.\2.linear."),
    (r"blocks\.(\d+)\.(\d+)\.carried\.", r"hydra_mlp.\1.\2.res_connection."),
    (r"lm_heads\.", "hydra_lm_head."),
    (r"layers\.", "prefix_embeding_layer.layers."),
    (r"norm\.", "prefix_embeding_layer.norm."),
)
CLOVER: Rules = ()
CLOVER2: Rules = (
    (r"enter\.norm\.", "clover_head_mlp_rnn.input_layernorm."),
    (r"enter\.", "clover_head_mlp_rnn."),
    (r"gate\.norm\.", "clover_head_mlp_rnn2.input_layernorm."),
    (r"gate\.", "clover_head_mlp_rnn2."),
    (r"first\.", "clover_head_mlp."),
    (r"later\.", "clover_head_mlp2."),
    (r"head_norm\.", "clover_head_norm."),
    (r"norm\.", "clover_norm."),
)
"""The embedding is left out: it is a copy of the target's language head."""


def published(rules: Rules, name: str) -> str:
    """Return the name that a format has for a tensor: that of the first rule that fits its beginning."""
    for pattern, replacement in rules:
        if found := re.match(pattern, name):
            return found.expand(replacement) + name[found.end() :]
    return name


def tensors_of(head: StepHead, rules: Rules) -> dict[str, torch.Tensor]:
    """Return the tensors of a head under a format's names."""
    tensors = dict(head.steps.state_dict())
    if head.backbone is not None:
        tensors |= {
            name: one for name, one in head.backbone.state_dict().items() if not name.startswith("embed_tokens")
        }
    return {published(rules, name): one.detach() for name, one in tensors.items()}


def of_speculators(
    kind: str, architecture: str, target: Target, layers: Mapping[str, Any], places: int, **proposal: Any
) -> dict[str, Any]:
    """Return what configurations of all kinds of heads of `speculators` have.

    Args:
        kind, architecture: the names that the library has for it.
        target: the model that the head is for.
        layers: the configuration of the head's layers.
        places: the longest draft that it was trained for.
        proposal: what else there is to say of drafts.
    """
    model = target.model
    return {
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "architectures": [architecture],
        "transformer_layer_config": layers,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": places, **proposal}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": model.name_or_path, "architectures": model.config.architectures},
        },
    }


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
    """Write a configuration, and tensors of numbers in one precision."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {
        name: (one.to(dtype) if one.is_floating_point() else one).cpu().contiguous() for name, one in tensors.items()
    }
    save_file(kept, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
