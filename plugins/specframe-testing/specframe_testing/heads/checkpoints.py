"""Small random heads for tests, saved in the formats that are published.

Exactness holds for heads with any weights. A *planted* head has something to accept: see :func:`planted_target`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

WIDTH = 0.3
"""Standard deviation of random weights, as in specframe's small random models."""


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random tensors; those of norms are about 1."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        made[name] = WIDTH * torch.randn(shape, generator=generator) + (1.0 if "norm" in name else 0.0)
    return made


Heads = tuple[int, int, int]
"""The numbers of query heads and of key heads of an attention, and their size."""


def heads_of(hidden: int) -> Heads:
    """Return the attention heads of a small head: query heads share one head of keys."""
    return (1, 1, hidden - 1) if hidden % 2 else (2, 1, hidden // 2)


def layer_shapes(prefix: str, hidden: int, inner: int, width: int = 0, heads: Heads | None = None) -> dict[str, Any]:
    """Return the shapes of a Llama layer's tensors, without its first norm; its attention takes ``width`` values."""
    width, (queries, shared, size) = width or hidden, heads or heads_of(hidden)
    return {
        f"{prefix}self_attn.q_proj.weight": (queries * size, width),
        f"{prefix}self_attn.k_proj.weight": (shared * size, width),
        f"{prefix}self_attn.v_proj.weight": (shared * size, width),
        f"{prefix}self_attn.o_proj.weight": (hidden, queries * size),
        f"{prefix}mlp.gate_proj.weight": (inner, hidden),
        f"{prefix}mlp.up_proj.weight": (inner, hidden),
        f"{prefix}mlp.down_proj.weight": (hidden, inner),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
    }


def eagle3_shapes(
    hidden: int,
    target_hidden: int,
    vocabulary: int,
    drafted: int,
    first: str = "layers.0.",
    layers: int = 1,
    heads: Heads | None = None,
) -> dict[str, Any]:
    """Return the shapes of an EAGLE-3 head's tensors."""
    shapes = layer_shapes(first, hidden, 2 * hidden, 2 * hidden, heads)
    shapes |= {f"{first}{name}.weight": (hidden,) for name in ("input_layernorm", "hidden_norm")}
    for place in range(1, layers):
        shapes |= layer_shapes(f"layers.{place}.", hidden, 2 * hidden, heads=heads)
        shapes[f"layers.{place}.input_layernorm.weight"] = (hidden,)
    shapes |= {"fc.weight": (hidden, 3 * target_hidden), "norm.weight": (hidden,), "lm_head.weight": (drafted, hidden)}
    return shapes | {"embed_tokens.weight": (vocabulary, hidden)}


def layer_config(hidden: int, vocabulary: int, layers: int = 1, **more: Any) -> dict[str, Any]:
    """Return the configuration of a head's layers, as checkpoints have it."""
    queries, shared, size = heads_of(hidden)
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": queries,
        "num_key_value_heads": shared,
        "head_dim": size,
        "vocab_size": vocabulary,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }
    return {"model_type": "llama", **sizes, **more}


def save(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], pickled: bool = False) -> Path:
    """Save a checkpoint; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if pickled:
        torch.save(dict(tensors), folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def offsets(drafted: int, vocabulary: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a random ``d2t``, (V_d,), and its ``t2d``, (V,)."""
    chosen = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(seed))[:drafted].sort().values
    known = torch.zeros(vocabulary, dtype=torch.bool)
    known[chosen] = True
    return chosen - torch.arange(drafted), known


def eagle3(
    folder: Path, target: PreTrainedModel, drafted: int = 0, seed: int = 0, layers: int = 1, **more: Any
) -> Path:
    """Save a random EAGLE-3 head for a target in the format of `speculators`; ``drafted``: its vocabulary, 0: the target's."""
    config = target.config.get_text_config()
    size, tokens, count = 16, config.vocab_size, config.num_hidden_layers
    tensors = random_tensors(eagle3_shapes(size, config.hidden_size, tokens, drafted or tokens, layers=layers), seed)
    if drafted:
        tensors["d2t"], tensors["t2d"] = offsets(drafted, tokens, seed)
    if more.get("norm_before_fc"):
        tensors["input_norm.weight"] = torch.ones(3 * config.hidden_size)
    if more.get("fc_norm"):
        tensors |= {f"fc_norm.{place}.weight": torch.ones(config.hidden_size) for place in range(3)}
    described = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer_config(size, tokens, layers),
        "draft_vocab_size": drafted or tokens,
        "target_hidden_size": config.hidden_size,
        "eagle_aux_hidden_state_layer_ids": [0, count // 2, count - 1],
    }
    return save(folder, described | more, tensors)


def eagle1(
    folder: Path, target: PreTrainedModel, seed: int = 0, pickled: bool = False, qkv_bias: bool = False, **more: Any
) -> Path:
    """Save a random EAGLE-1 head for a target in the authors' layout; its embedding is its own, its logits the target's.

    Args:
        qkv_bias: whether queries, keys and values have a bias.
        more: further keys of the configuration.
    """
    config = target.config.get_text_config()
    size, tokens = config.hidden_size, config.vocab_size
    shapes = layer_shapes("layers.0.", size, 2 * size)
    shapes |= {"fc.weight": (size, 2 * size), "fc.bias": (size,), "embed_tokens.weight": (tokens, size)}
    if qkv_bias:
        for name in ("q_proj", "k_proj", "v_proj"):
            shapes[f"layers.0.self_attn.{name}.bias"] = shapes[f"layers.0.self_attn.{name}.weight"][:1]
        more["qkv_bias"] = True
    return save(folder, layer_config(size, tokens, bias=True, **more), random_tensors(shapes, seed), pickled)


def eagle1_speculators(folder: Path, target: PreTrainedModel, seed: int = 0, normed: bool = True, **more: Any) -> Path:
    """Save a random EAGLE-1 head in the format of `speculators` up to 0.2.

    Args:
        normed: with the norms that the format has for it.
        more: further keys of the layers' configuration.
    """
    config = target.config.get_text_config()
    size, tokens = config.hidden_size, config.vocab_size
    shapes = layer_shapes("transformer.", size, 2 * size) | {"fusion_fc.weight": (size, 2 * size)}
    shapes |= {"embed_tokens.weight": (tokens, size), "lm_head.weight": (tokens, size)}
    norms = ("embedding_layernorm", "transformer.input_layernorm", "pre_lm_head_layernorm")
    shapes |= {f"{name}.weight": (size,) for name in norms if normed}
    described = {
        "speculators_model_type": "eagle",
        "transformer_layer_config": layer_config(size, tokens, **more),
        "layernorms": normed,
        "fusion_bias": False,
    }
    return save(folder, described, random_tensors(shapes, seed))


def eagle3_authors(
    folder: Path, target: PreTrainedModel, drafted: int = 0, seed: int = 0, pickled: bool = True, **more: Any
) -> Path:
    """Save a random EAGLE-3 head for a target in the authors' layout; its embedding is the target's.

    Args:
        more: further keys of the configuration.
    """
    config = target.config.get_text_config()
    size, tokens = config.hidden_size, config.vocab_size
    tensors = random_tensors(eagle3_shapes(size, size, tokens, drafted or tokens, "midlayer."), seed)
    del tensors["embed_tokens.weight"]
    if drafted:
        tensors["d2t"], tensors["t2d"] = offsets(drafted, tokens, seed)
    return save(folder, layer_config(size, tokens, draft_vocab_size=drafted or tokens, **more), tensors, pickled)


def eagle3_modelopt(folder: Path, target: PreTrainedModel, drafted: int = 0, seed: int = 0, **more: Any) -> Path:
    """Save a random EAGLE-3 head for a target as ModelOpt exports it; its embedding is the target's."""
    config = target.config.get_text_config()
    size, tokens = config.hidden_size, config.vocab_size
    tensors = random_tensors(eagle3_shapes(size, size, tokens, drafted or tokens), seed)
    del tensors["embed_tokens.weight"]
    if drafted:
        tensors["d2t"], _ = offsets(drafted, tokens, seed)
    described = layer_config(size, tokens, draft_vocab_size=drafted or tokens, architectures=["LlamaForCausalLMEagle3"])
    own = {
        "eagle_aux_hidden_state_layer_ids": [0, 1, config.num_hidden_layers - 1],
        "use_aux_hidden_state": True,
        "use_last_layernorm": True,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
    }
    return save(folder, {**described, "eagle_config": own, **more}, tensors)


SHARP = 30.0
"""What planted logits are multiplied with: the distribution is a point mass, and no two logits are near a tie."""


SECOND = 0.9
"""The logit of a planted head's second choice, as a part of the first's. A tie would be broken by the shapes of a batch."""

LEFT = -0.5
"""What a planted layer leaves in a part that it has read."""


def following(vocabulary: int, seed: int = 0) -> torch.Tensor:
    """Return the token that a planted target continues each token with, (V,): one cycle through all of them."""
    order = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(seed))
    return torch.empty_like(order).scatter_(0, order, order.roll(-1))


def marks(state: int, vocabulary: int) -> torch.Tensor:
    """Return the mark of each token in hidden state ``state`` of a planted target, (V,): another order for each state."""
    return torch.randperm(vocabulary, generator=torch.Generator().manual_seed(100 + state))


def planted_target(layers: int = 8, vocabulary: int = 12) -> PreTrainedModel:
    """Return a target whose hidden state at each layer encodes the token, in a way of its own.

    Hidden state k of token t has two values of 1: the token itself in part 0, and its mark in part k, where part k has V places.
    Layer k reads the token, takes the mark out of part k and puts one into part k + 1. More is taken out than was there: a trace of
    rounding would be enough to find the token. So who reads the part of another state finds nothing, or something wrong, and a head
    that is fed a wrong layer accepts nothing. The next token follows from the last state alone, see :func:`following`; attention
    adds nothing.
    """
    size = vocabulary * (layers + 1)
    config = LlamaConfig(
        **(layer_config(size, vocabulary, layers) | {"intermediate_size": vocabulary, "eos_token_id": None})
    )
    model = LlamaForCausalLM(config).eval()
    eye, tokens = torch.eye(vocabulary), torch.arange(vocabulary)
    parts = [torch.arange(part * vocabulary, (part + 1) * vocabulary) for part in range(layers + 1)]
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight[tokens, tokens] = 1.0
        for place, layer in enumerate(model.model.layers):
            active = (size / squares(place)) ** 0.5
            layer.mlp.gate_proj.weight[:, parts[0]] = eye
            layer.mlp.up_proj.weight[:, parts[0]] = eye
            moved = torch.zeros(size, vocabulary)
            moved[parts[place + 1][marks(place + 1, vocabulary)], tokens] += 1.0
            if place:
                moved[parts[place][marks(place, vocabulary)], tokens] -= 1.0 - LEFT
            layer.mlp.down_proj.weight.copy_(moved / gated(active))
        model.lm_head.weight[following(vocabulary), parts[layers][marks(layers, vocabulary)]] = SHARP
    return model


def squares(state: int) -> float:
    """Return the sum of the squares of a planted hidden state: what is left in the parts before its own counts, too."""
    return 1.0 if state == 0 else 2.0 + (state - 1) * LEFT**2


def gated(value: float) -> float:
    """Return what a gated unit gives whose gate and whose input are both ``value``."""
    return float(torch.nn.functional.silu(torch.tensor(value)) * value)


def planted_eagle3(
    folder: Path,
    target: PreTrainedModel,
    read: int,
    ids: list[int] | None,
    layout: str = "speculators",
    slips: int = 0,
) -> Path:
    """Save an EAGLE-3 head that continues a planted target without an error, reading its middle hidden state.

    Args:
        folder: where to.
        target: a :func:`planted_target`.
        read: the number of the hidden state that it was made for, the second of the three that it is fed.
        ids: the layer ids that the file has, or None for none.
        layout: "speculators", "authors", or "sglang": the authors' with ids, which are one less than hidden states' numbers.
        slips: tokens of which it continues one wrongly, with the right token as its second choice, or 0 for none.
    """
    config = target.config
    tokens, size = config.vocab_size, config.vocab_size
    own = layout == "speculators"
    tensors = {
        name: torch.zeros(shape)
        for name, shape in eagle3_shapes(size, config.hidden_size, tokens, tokens, "layers.0.").items()
    }
    tensors |= {name: torch.ones_like(one) for name, one in tensors.items() if "norm" in name}
    mark, follows, all_tokens = marks(read, tokens), following(tokens), torch.arange(tokens)
    tensors["fc.weight"][all_tokens, config.hidden_size + read * tokens + all_tokens] = 1.0
    moved = torch.zeros(size, tokens)  # from the mark of a token to that of the one after it
    moved[mark[follows], mark] += 1.0
    moved[mark, mark] -= 1.0
    for name, value in (
        ("gate_proj", torch.eye(tokens)),
        ("up_proj", torch.eye(tokens)),
        ("down_proj", moved / gated(size**0.5)),
    ):
        tensors[f"layers.0.mlp.{name}.weight"] = value
    says = (follows + (all_tokens % slips == 0).long()) % tokens if slips else follows
    tensors["lm_head.weight"][follows, mark] = SECOND * SHARP
    tensors["lm_head.weight"][says, mark] = SHARP
    layers = layer_config(size, tokens) | {"intermediate_size": tokens}
    if own:
        described = {"speculators_model_type": "eagle3", "transformer_layer_config": layers, "draft_vocab_size": tokens}
        described |= {"target_hidden_size": config.hidden_size, "eagle_aux_hidden_state_layer_ids": ids}
    else:
        tensors = {name.replace("layers.0.", "midlayer."): one for name, one in tensors.items()}
        described = layers | {"target_hidden_size": config.hidden_size}
        described |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}} if ids else {}
    return save(folder, described, tensors)


def plant_step(tensors: dict[str, torch.Tensor], mlp: str, target: PreTrainedModel, value: float) -> None:
    """Have the MLP of a layer move the mark in a planted target's last hidden state to that of the token after.

    Args:
        tensors: of a head, of zeros.
        mlp: the beginning of the names of the MLP's tensors.
        target: the planted target, whose sizes the head has.
        value: of a mark.
    """
    config = target.config
    size, tokens, last = config.hidden_size, config.vocab_size, config.num_hidden_layers
    part, mark = torch.arange(last * tokens, (last + 1) * tokens), marks(last, tokens)
    moved = torch.zeros(size, tokens)
    moved[part[mark[following(tokens)]], mark] += 1.0
    moved[part[mark], mark] -= 1.0
    for name in ("gate_proj", "up_proj"):
        tensors[f"{mlp}{name}.weight"][torch.arange(tokens), part] = 1.0
    tensors[f"{mlp}down_proj.weight"] = moved * value / gated(size**0.5)


def planted_eagle1(folder: Path, target: PreTrainedModel, layout: str = "authors") -> Path:
    """Save an EAGLE-1 head that continues a planted target without an error: it reads the last state.

    Args:
        layout: "authors", or "speculators": that of versions up to 0.2, without norms.
    """
    config = target.config
    size, tokens, last = config.hidden_size, config.vocab_size, config.num_hidden_layers
    shapes = layer_shapes("layers.0.", size, tokens)
    shapes |= {"fc.weight": (size, 2 * size), "embed_tokens.weight": (tokens, size)}
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    part = torch.arange(last * tokens, (last + 1) * tokens)
    tensors["fc.weight"][part, size + part] = 1.0
    tensors["layers.0.post_attention_layernorm.weight"] += 1.0
    plant_step(tensors, "layers.0.mlp.", target, (size / squares(last)) ** 0.5)  # a mark after the target's final norm
    sizes = layer_config(size, tokens) | {"intermediate_size": tokens}
    if layout == "authors":
        return save(folder, sizes | {"bias": False}, tensors)
    tensors = {one.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): tensors[one] for one in tensors}
    described = {"speculators_model_type": "eagle", "transformer_layer_config": sizes}
    return save(folder, described | {"layernorms": False, "fusion_bias": False}, tensors)
