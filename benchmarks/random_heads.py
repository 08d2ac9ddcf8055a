"""Heads of the sizes that are published for a target, with random weights, in the formats of published checkpoints.

A round with such a head costs the same whatever its weights are.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.stepwise import writing
from specframe_heads.stepwise.step_head import StepHead, sizes
from specframe_heads.stepwise.steps import Medusa
from specframe_heads.target import Target
from specframe_testing.heads import mtp as mtp_layers
from specframe_testing.heads.stepwise import new

LAYERS = {"eagle": 1, "peagle": 4, "dflash": 5, "dspark": 5}
"""Layers of the heads of ``speculators`` that are published for Qwen3-8B."""
VOCABULARY = 32000
"""Tokens that a head knows where its format has a vocabulary of its own, as in the published ones."""

Shapes = Mapping[str, tuple[int, ...]]


def save(kind: str, folder: Path, target: Any, places: int) -> str:
    """Save a head, and return its folder.

    Args:
        kind: one of :data:`KINDS`.
        folder: a new one.
        target: the model that it is for.
        places: the longest draft.
    """
    config, shapes = KINDS[kind](target, places)
    tensors = {name: random(name, shape, target) for name, shape in shapes.items()}
    if kind in ("eagle", "peagle") and config["draft_vocab_size"] < target.config.vocab_size:
        tensors["d2t"] = torch.zeros(config["draft_vocab_size"], dtype=torch.long)
    if kind == "medusa" and config["truncated_vocab_size"] < target.config.vocab_size:
        tensors["token_map"] = torch.arange(config["truncated_vocab_size"])
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def random(name: str, shape: tuple[int, ...], target: Any) -> torch.Tensor:
    """Return a random tensor, made on the target's device; that of a norm is of ones."""
    if "norm" in name:
        return torch.ones(shape, dtype=target.dtype)
    return (0.02 * torch.randn(shape, device=target.device)).to("cpu", target.dtype)


def of_speculators(kind: str, target: Any, places: int) -> tuple[dict[str, Any], Shapes]:
    """Return the configuration and the shapes of EAGLE-3, P-EAGLE, DFlash or DSpark, in the format of ``speculators``."""
    own = target.config
    layers, size = LAYERS[kind], own.hidden_size
    config = {
        "model_type": "qwen3", "hidden_size": size, "intermediate_size": own.intermediate_size, "num_hidden_layers": layers,
        "num_attention_heads": own.num_attention_heads, "num_key_value_heads": own.num_key_value_heads, "head_dim": own.head_dim,
        "vocab_size": own.vocab_size, "rms_norm_eps": own.rms_norm_eps, "max_position_embeddings": own.max_position_embeddings,
        "layer_types": ["full_attention"] * layers, "attention_bias": False,
    }  # fmt: skip
    last, drafted = own.num_hidden_layers - 3, min(VOCABULARY, own.vocab_size)
    three, five = [2, own.num_hidden_layers // 2, last], [2 + round(step * (last - 2) / 4) for step in range(5)]
    given: dict[str, Any] = {"speculators_model_type": kind, "transformer_layer_config": config}
    if kind in ("eagle", "peagle"):
        given |= {
            "speculators_model_type": {"eagle": "eagle3"}.get(kind, kind),
            "eagle_aux_hidden_state_layer_ids": three,
        }
        given |= {"draft_vocab_size": drafted, "mask_token_id": 7}
    else:
        given |= {"aux_hidden_state_layer_ids": five, "block_size": 16, "mask_token_id": 7, "markov_rank": 256}
    return given, shapes_of(kind, config, len(given.get("aux_hidden_state_layer_ids", three)) * size, drafted)


def shapes_of(kind: str, config: dict[str, Any], features: int, drafted: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a head's tensors by name."""
    size, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    pairs = kind in ("eagle", "peagle")
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (size, features), "norm.weight": (size,)}
    for layer in range(config["num_hidden_layers"]):
        at, width = f"layers.{layer}.", 2 * size if pairs and layer == 0 else size
        for name in ("q", "k", "v"):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (queries if name == "q" else keys, width)
        shapes |= {f"{at}self_attn.{name}_norm.weight": (head,) for name in ("q", "k")}
        shapes[f"{at}self_attn.o_proj.weight"] = (size, queries)
        shapes |= {f"{at}mlp.{name}_proj.weight": (inner, size) for name in ("gate", "up")}
        shapes[f"{at}mlp.down_proj.weight"] = (size, inner)
        shapes |= {f"{at}{name}_layernorm.weight": (size,) for name in ("input", "post_attention")}
    if pairs:
        shapes |= {"layers.0.hidden_norm.weight": (size,), "lm_head.weight": (drafted, size)}
    else:
        shapes["hidden_norm.weight"] = (size,)
    if kind == "peagle":
        shapes["mask_hidden"] = (1, 1, features)
    if kind == "dspark":
        shapes |= {"markov_head.markov_w1.weight": (config["vocab_size"], 256)}
        shapes |= {"markov_head.markov_w2.weight": (config["vocab_size"], 256)}
        shapes |= {"confidence_head.proj.weight": (1, size + 256), "confidence_head.proj.bias": (1,)}
    return shapes


def medusa(target: Any, places: int) -> tuple[dict[str, Any], Shapes]:
    """Return the configuration and the shapes of Medusa with one block for each place, under vLLM's names."""
    size, drafted = target.config.hidden_size, min(VOCABULARY, target.config.vocab_size)
    with torch.device("meta"):
        head = StepHead(Medusa(size, drafted, places, bias=False), DraftVocabulary(None, drafted))
    sized = {"hidden_size": size, "vocab_size": target.config.vocab_size, "truncated_vocab_size": drafted}
    config = {"model_type": "medusa", "num_heads": places, "num_hidden_layers": 1, **sized}
    return config, shapes_in(writing.tensors_of(head, writing.MEDUSA))


def clover2(target: Any, places: int) -> tuple[dict[str, Any], Shapes]:
    """Return the configuration and the shapes of Clover-2, with the two layers of the paper."""
    with torch.device("meta"):
        shell = Target(type(target)(target.config))
        head = new("clover2", shell)
    config = {**sizes(shell), "architectures": ["Clover2Model"], "clover_num_heads": places}
    return config, shapes_in(writing.tensors_of(head, writing.CLOVER2))


def mtp(target: Any, places: int) -> tuple[dict[str, Any], Shapes]:
    """Return the configuration and the shapes of one MTP layer of the target's kind, in the format of ``speculators``."""
    layer = mtp_layers.layer_shapes(target)
    return mtp_layers.CONFIG, {mtp_layers.of_speculators(name, 0, 0): shape for name, shape in layer.items()}


def shapes_in(tensors: Mapping[str, torch.Tensor]) -> Shapes:
    """Return the shapes of tensors."""
    return {name: tuple(one.shape) for name, one in tensors.items()}


KINDS: Mapping[str, Callable[[Any, int], tuple[dict[str, Any], Shapes]]] = {
    **{kind: functools.partial(of_speculators, kind) for kind in LAYERS},
    "medusa": medusa, "clover2": clover2, "mtp": mtp,
}  # fmt: skip
"""The heads that there are. Hydra is not among them: each of its language heads has the target's whole vocabulary, and with
Qwen3's of 152 thousand tokens five of them would be nearly as large as the target."""
