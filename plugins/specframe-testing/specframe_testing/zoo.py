"""Small random models of real architectures, odd in the ways real ones are: shared heads, tied weights, few windows.

Weights are wide enough that no two logits come near a tie, and pad is eos in every model.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedModel, PreTrainedTokenizerFast

VOCABULARY = 97
CONTEXT = 160
EOS = 0
WIDTH = 0.3
"""Standard deviation of the weights; the usual 0.02 makes logits so flat that rounding decides."""

_GROUPED = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "initializer_range": WIDTH,
    "bos_token_id": None,
}

_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "Llama",
        {**_GROUPED, "num_attention_heads": 6, "hidden_size": 36, "head_dim": 6, "num_key_value_heads": 3},
    ),
    "qwen3": ("Qwen3", {**_GROUPED, "head_dim": 12, "tie_word_embeddings": True}),
    "glm4": ("Glm4", {**_GROUPED, "partial_rotary_factor": 0.5, "num_key_value_heads": 1}),
    "mistral": ("Mistral", {**_GROUPED, "sliding_window": 7}),
    "gemma3": (
        "Gemma3",
        {
            **_GROUPED,
            "num_hidden_layers": 3,
            "tie_word_embeddings": False,
            "query_pre_attn_scalar": 1,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gpt2": (
        "GPT2",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": CONTEXT,
            "initializer_range": WIDTH,
            "bos_token_id": None,
        },
    ),
    "opt": (
        "OPT",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "word_embed_proj_dim": 16,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": CONTEXT,
            "init_std": WIDTH,
            "bos_token_id": None,
        },
    ),
    "phi3": ("Phi3", {**{k: v for k, v in _GROUPED.items() if k != "head_dim"}, "num_key_value_heads": 4}),
    "qwen3-moe": (
        "Qwen3Moe",
        {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
    ),
}

NAMES = tuple(_MODELS)
"""Those that attend in every layer."""

_HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3.5": (
        "Qwen3_5Text",
        {
            **_GROUPED,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 6,
        },
    ),
}
HYBRIDS = tuple(_HYBRIDS)
"""Those with layers that keep a state."""

CHARACTERS = ("<eos>", "\n", *map(chr, range(32, 127)))
"""Texts of the tokens of :func:`character_tokenizer`, by id; one for each id of the vocabulary."""


def build(name: str, seed: int = 0, **options: Any) -> PreTrainedModel:
    """Return a small random model of an architecture in :data:`NAMES` or :data:`HYBRIDS`, the same one for the same seed.

    ``options`` replace those of its configuration.
    """
    family, usual = (_MODELS | _HYBRIDS)[name]
    return _make(family, {**usual, "eos_token_id": EOS, "pad_token_id": EOS, **options}, seed)


def good_draft(model: PreTrainedModel, seed: int = 0, noise: float = 0.01) -> PreTrainedModel:
    """Return a copy of ``model`` with noise on its weights: it often chooses as the original does, not always."""
    draft = copy.deepcopy(model)
    noise_of = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in draft.parameters():
            weights.add_(noise * torch.randn(weights.shape, generator=noise_of).to(weights.device))
    return draft


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer for the zoo's vocabulary in which one token is one character."""
    backend = Tokenizer(BPE({character: index for index, character in enumerate(CHARACTERS)}, []))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=CHARACTERS[EOS], pad_token=CHARACTERS[EOS])


def eos_prompts(lengths: Sequence[int]) -> list[list[int]]:
    """Return a prompt of random ids per length, of five lengths or more, with eos ids, which are pad ids.

    The first prompt is an eos id alone; the four after it have one in the middle, first, last and second.
    """
    generator = torch.Generator().manual_seed(1)
    made = [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    made[0] = [EOS]
    made[1][lengths[1] // 2] = made[2][0] = made[3][-1] = made[4][1] = EOS
    return made


def save_pair(folder: Path, **options: Any) -> list[str]:
    """Save a target, a draft model that often chooses the same, and a tokenizer; return the options that name both models.

    ``options`` replace those of the models' configuration.
    """
    target, tokenizer = build("qwen3", **options), character_tokenizer()
    for name, model in {"target": target, "drafter": good_draft(target)}.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return ["--target", str(folder / "target"), "--drafter", str(folder / "drafter")]


def bad_draft(seed: int = 1) -> PreTrainedModel:
    """Return an unrelated model of one layer with the zoo's vocabulary: its drafts are hardly ever accepted."""
    return build("qwen3", seed, num_hidden_layers=1, tie_word_embeddings=False)


def _make(family: str, options: dict[str, Any], seed: int) -> PreTrainedModel:
    config_name = {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config")
    model_name = {"GPT2": "GPT2LMHeadModel", "Qwen3_5Text": "Qwen3_5ForCausalLM"}.get(family, f"{family}ForCausalLM")
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, model_name)(getattr(transformers, config_name)(**options))
        _embed_padding(model)
    return model.eval()


def _embed_padding(model: PreTrainedModel) -> None:
    """Give the pad token an embedding like any other: with zeros, a prompt of nothing else makes all logits equal."""
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            with torch.no_grad():
                module.weight[module.padding_idx].normal_(std=WIDTH)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from remarking on unusual configurations."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
