"""Random block heads, saved in the formats in which they are published, and heads with something to accept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specframe_testing import zoo
from specframe_testing.heads.checkpoints import eagle3_shapes, layer_config, layer_shapes, offsets, random_tensors, save

WINDOWS: tuple[int | None, ...] = (None, None)
"""The sliding windows of a head's layers: two layers without one."""

RANK = 6
"""Rank of the Markov head."""


def layers(
    target: PreTrainedModel, hidden: int | None = None, windows: tuple[int | None, ...] = WINDOWS, size: int = 8
) -> dict[str, Any]:
    """Return the configuration of a head's layers, one for each entry of ``windows``, with attention heads of ``size``."""
    text, slides = target.config.get_text_config(), [window for window in windows if window is not None]
    own = {
        "model_type": "qwen3",
        "intermediate_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": size,
        "max_position_embeddings": 4096,
        "use_sliding_window": bool(slides),
        "sliding_window": slides[0] if slides else None,
        "max_window_layers": 0,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
    }
    return layer_config(hidden or text.hidden_size, text.vocab_size, len(windows)) | own


def backbone_shapes(config: Mapping[str, Any], features: int) -> dict[str, Any]:
    """Return the shapes of the tensors of DFlash's backbone, which is fed ``features`` values of each token."""
    hidden, size = config["hidden_size"], config["head_dim"]
    heads = config["num_attention_heads"], config["num_key_value_heads"], size
    shapes: dict[str, Any] = {
        "fc.weight": (hidden, features),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}."
        shapes |= layer_shapes(at, hidden, config["intermediate_size"], heads=heads)
        shapes |= {f"{at}self_attn.{name}_norm.weight": (size,) for name in "qk"}
        shapes[f"{at}input_layernorm.weight"] = (hidden,)
    return shapes


def markov_shapes(vocabulary: int, drafted: int, hidden: int, kind: str) -> dict[str, Any]:
    """Return the shapes of the tensors of a Markov head and of a confidence head that looks at the token before."""
    shapes: dict[str, Any] = {
        "markov_head.markov_w1.weight": (vocabulary, RANK),
        "markov_head.markov_w2.weight": (drafted, RANK),
        "confidence_head.proj.weight": (1, hidden + RANK),
        "confidence_head.proj.bias": (1,),
    }
    further = {"gated": ("gate_proj", RANK, hidden + RANK), "rnn": ("joint_proj", 3 * RANK, 2 * RANK + hidden)}
    if kind in further:
        name, rows, columns = further[kind]
        shapes |= {f"markov_head.{name}.weight": (rows, columns), f"markov_head.{name}.bias": (rows,)}
    return shapes


def speculators(
    folder: Path,
    target: PreTrainedModel,
    kind: str = "dflash",
    *,
    hidden: int = 32,
    drafted: int | None = None,
    windows: tuple[int | None, ...] = WINDOWS,
    head: str = "vanilla",
    ids: tuple[int, ...] = (1, 2),
    size: int = 8,
    seed: int = 0,
    **options: Any,
) -> str:
    """Save a random dflash or dspark checkpoint of ``speculators``, with an embedding and a head of its own; return its folder.

    Args:
        hidden: its hidden size.
        drafted: tokens of its vocabulary, or None: those of the target.
        windows: the sliding window of each layer.
        head: kind of the Markov head.
        ids: of layers.
        size: of attention heads.
        options: further keys of the configuration.
    """
    text = target.config.get_text_config()
    config, drafted = layers(target, hidden, windows, size), drafted or text.vocab_size
    shapes = backbone_shapes(config, len(ids) * text.hidden_size)
    shapes |= {"embed_tokens.weight": (text.vocab_size, hidden), "lm_head.weight": (drafted, hidden)}
    given = {
        "speculators_model_type": kind,
        "architectures": ["DFlashSpeculator"],
        "transformer_layer_config": config,
        "draft_vocab_size": drafted,
        "block_size": 6,
        "mask_token_id": 3,
        "aux_hidden_state_layer_ids": list(ids),
    }
    if kind == "dspark":
        shapes |= markov_shapes(text.vocab_size, drafted, hidden, head)
        given |= {"markov_rank": RANK, "markov_head_type": head}
    tensors = random_tensors(shapes, seed)
    if drafted < text.vocab_size:
        tensors["d2t"], tensors["t2d"] = offsets(drafted, text.vocab_size, seed)
    return str(save(folder, given | options, tensors))


def z_lab(
    folder: Path,
    target: PreTrainedModel,
    ids: tuple[int, ...] = (0, 1),
    size: int = 8,
    seed: int = 0,
    windows: tuple[int | None, ...] = WINDOWS,
    nested: Mapping[str, Any] | None = None,
    **options: Any,
) -> str:
    """Save a random checkpoint in z-lab's format, which borrows the target's embedding and head; return its folder.

    Args:
        windows: the sliding window of each layer.
        nested: further keys of ``dflash_config``.
        options: further keys of the configuration.
    """
    config, text = layers(target, None, windows, size), target.config.get_text_config()
    given = {
        **config,
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": 6,
        "num_target_layers": text.num_hidden_layers,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": list(ids), **(nested or {})},
    }
    tensors = random_tensors(backbone_shapes(config, len(ids) * text.hidden_size), seed)
    return str(save(folder, given | options, tensors))


def deepspec(
    folder: Path,
    target: PreTrainedModel,
    ids: tuple[int, ...] = (-1, 1),
    head: str | None = "vanilla",
    size: int = 8,
    seed: int = 0,
    **options: Any,
) -> str:
    """Save a random checkpoint in DeepSpec's format; ``head``: kind of the Markov head, None: DFlash. Return its folder."""
    config, text = layers(target, None, WINDOWS, size), target.config.get_text_config()
    hidden, vocabulary = text.hidden_size, text.vocab_size
    shapes = backbone_shapes(config, len(ids) * hidden)
    shapes |= {"embed_tokens.weight": (vocabulary, hidden), "lm_head.weight": (vocabulary, hidden)}
    given = {
        **config,
        "architectures": ["Qwen3DSparkModel"],
        "block_size": 6,
        "mask_token_id": 3,
        "target_layer_ids": list(ids),
        "num_anchors": 8,
        "markov_rank": RANK if head else 0,
        "enable_confidence_head": head is not None,
    }
    if head:
        shapes |= markov_shapes(vocabulary, vocabulary, hidden, head)
        given |= {"markov_head_type": head, "confidence_head_with_markov": True}
    return str(save(folder, given | options, random_tensors(shapes, seed)))


def peagle(
    folder: Path,
    target: PreTrainedModel,
    drafted: int = 0,
    depth: int = 2,
    hidden: int = 16,
    ids: tuple[int, ...] = (0, 1, 2),
    seed: int = 0,
    **more: Any,
) -> str:
    """Save a random P-EAGLE head in the format of ``speculators``; return its folder.

    Args:
        drafted: its vocabulary, or 0 for the target's.
        depth: its layers, each with two attention heads.
        hidden: its hidden size.
        ids: of layers.
        more: further keys of the configuration.
    """
    text = target.config.get_text_config()
    vocabulary = text.vocab_size
    heads = 2, 2, hidden // 2
    shapes = eagle3_shapes(hidden, text.hidden_size, vocabulary, drafted or vocabulary, layers=depth, heads=heads)
    tensors = random_tensors(shapes | {"mask_hidden": (1, 1, 3 * text.hidden_size)}, seed)
    if drafted:
        tensors["d2t"], tensors["t2d"] = offsets(drafted, vocabulary, seed)
    given = {
        "speculators_model_type": "peagle",
        "transformer_layer_config": layer_config(hidden, vocabulary, depth, num_key_value_heads=2),
        "draft_vocab_size": drafted or vocabulary,
        "target_hidden_size": text.hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(ids),
        "mask_token_id": 3,
    }
    return str(save(folder, given | more, tensors))


def pard(folder: Path, target: PreTrainedModel, mask: int = 3) -> str:
    """Save a copy of a target with noise on its weights as a PARD model; return its folder."""
    model = zoo.good_draft(target)
    model.config.pard_token = mask
    model.save_pretrained(folder)
    return str(folder)


PLANTED = 32
"""Tokens of :func:`counting`, and its hidden size."""


def counting(layers: int = 5) -> PreTrainedModel:
    """Return a target that repeats its last token, whose hidden state k is 1 at token + k and 0 elsewhere, up to a factor.

    A head that is fed another hidden state than the one it was made for takes one token for another.
    """
    config = LlamaConfig(
        vocab_size=PLANTED, hidden_size=PLANTED, intermediate_size=PLANTED, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=160, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model, one = LlamaForCausalLM(config).eval(), torch.eye(PLANTED)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(one)
        model.lm_head.weight.copy_(turned(layers).T)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.gate_proj.weight.copy_(20 * one)
            layer.mlp.up_proj.weight.copy_(one / (20 * PLANTED))
            layer.mlp.down_proj.weight.copy_(turned(1) - one)
    return model


def turned(count: int) -> torch.Tensor:
    """Return the matrix that takes the unit vector of a token to that of the token ``count`` after it."""
    return torch.eye(PLANTED).roll(count, dims=0)


def plant(folder: str, layers: int, state: int) -> str:
    """Give a checkpoint for :func:`counting` weights that draft the token that the context repeats; return the folder.

    Args:
        folder: a head of any of the kinds here whose hidden size is :data:`PLANTED`.
        layers: of the target.
        state: the first hidden state that it is made for.
    """
    path = Path(folder) / "model.safetensors"
    tensors = {name: torch.zeros_like(one) for name, one in load_file(path).items()}
    for name in tensors:
        if "norm" in name and "input_layernorm" not in name:  # what is in the block itself is left out of account
            tensors[name] = torch.ones_like(tensors[name])
    attention = "layers.0.self_attn."
    tensors["fc.weight"][:, :PLANTED] = turned(-state)
    values = tensors[f"{attention}v_proj.weight"]
    values[:, values.shape[1] - PLANTED :] = torch.eye(PLANTED)[: len(values)]
    joined = tensors[f"{attention}o_proj.weight"]
    shared = joined.shape[1] // len(values)
    size = len(values) // 2
    for head in range(joined.shape[1] // size):
        joined[:, head * size : (head + 1) * size] = (
            10 * turned(layers)[:, head // shared * size : (head // shared + 1) * size]
        )
    for name, value in (("embed_tokens.weight", torch.eye(PLANTED)), ("lm_head.weight", turned(layers).T)):
        if name in tensors:
            tensors[name] = value
    save_file({name: one.contiguous() for name, one in tensors.items()}, path)
    return folder
