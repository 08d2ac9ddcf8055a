"""The names of tensors in published files, as the modules here call them.

A rule is a pattern and what takes its place; a tensor that no rule names is none of the head's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

Rules = tuple[tuple[str, str], ...]

MEDUSA: Rules = (
    (r"(?:medusa_heads?\.)?(\d+)\.(\d+)\.linear\.(weight|bias)", r"blocks.\1.\2.linear.\3"),
    (r"(?:medusa_heads?\.)?(\d+)\.\d+\.weight", r"lm_heads.\1.weight"),
)
"""FasterDecoding: the last module of head i is its linear layer. In a fine-tuned base (Medusa-2) all begin with medusa_head."""

MEDUSA_VLLM: Rules = (
    (r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)", r"blocks.\1.\2.linear.\3"),
    (r"(?:medusa_heads\.)?lm_heads\.(\d+)\.weight", r"lm_heads.\1.weight"),
)

LAYER = r"((?:self_attn|mlp)\.\w+|input_layernorm|post_attention_layernorm)\.(weight|bias)"
"""What a decoder layer of the Llama kind has."""

HYDRA: Rules = (
    (r"hydra_mlp\.(\d+)\.(\d+)\.linear\.(weight|bias)", r"blocks.\1.\2.linear.\3"),
    (r"hydra_mlp\.(\d+)\.(\d+)\.res_connection\.(weight|bias)", r"blocks.\1.\2.carried.\3"),
    (r"hydra_lm_head\.(\d+)\.(?:1\.)?(weight|bias)", r"lm_heads.\1.\2"),
    (rf"prefix_embeding_layer\.layers\.(\d+)\.{LAYER}", r"layers.\1.\2.\3"),
    (r"prefix_embeding_layer\.norm\.weight", "norm.weight"),
)
"""Hydra; with dropout (Hydra++) block j of a head is its module 2 j + 1, see :func:`dense`."""

CLOVER: Rules = (
    (r"gate\.(norm|q|k|v)\.(weight|bias)", r"gate.\1.\2"),
    (r"blocks\.(\d+)\.linear\.(weight|bias)", r"blocks.\1.linear.\2"),
    (rf"layers\.(\d+)\.{LAYER}", r"layers.\1.\2.\3"),
)

CLOVER2: Rules = (
    (r"clover_embed_tokens\.weight", "embed_tokens.weight"),
    (r"clover_head_mlp_rnn\.input_layernorm\.weight", "enter.norm.weight"),
    (r"clover_head_mlp_rnn\.([qkv])\.(weight|bias)", r"enter.\1.\2"),
    (r"clover_head_mlp_rnn2\.input_layernorm\.weight", "gate.norm.weight"),
    (r"clover_head_mlp_rnn2\.([qkv])\.(weight|bias)", r"gate.\1.\2"),
    (r"clover_head_mlp\.(weight|bias)", r"first.\1"),
    (r"clover_head_mlp2\.(weight|bias)", r"later.\1"),
    (r"clover_head_norm\.weight", "head_norm.weight"),
    (rf"layers\.(\d+)\.{LAYER}", r"layers.\1.\2.\3"),
    (r"clover_norm\.weight", "norm.weight"),
)


def own(rules: Rules, name: str) -> str | None:
    """Return the name that a module has for a tensor of a file, or None if the tensor is none of the head's."""
    for pattern, replacement in rules:
        if found := re.fullmatch(pattern, name):
            return found.expand(replacement)
    return None


def dense(names: Iterable[str], part: str) -> dict[str, str]:
    """Return, by each name, one whose second number in ``part.i.j`` is counted without gaps: some modules have no weights."""
    places = sorted({int(found[1]) for name in names if (found := re.match(rf"{part}\.\d+\.(\d+)\.", name))})
    number = {str(place): str(index) for index, place in enumerate(places)}

    def closed(found: re.Match[str]) -> str:
        return f"{found[1]}{number[found[2]]}."

    return {name: re.sub(rf"^({part}\.\d+\.)(\d+)\.", closed, name) for name in names}


def count(names: Iterable[str], part: str) -> int:
    """Return how many numbered modules ``part.i`` there are: files hold more heads than uploaded configurations say."""
    return 1 + max((int(found[1]) for name in names if (found := re.match(rf"{part}\.(\d+)\.", name))), default=-1)
