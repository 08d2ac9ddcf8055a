"""The format of MTP layers in a file of their own, and the layouts of those in a target's checkpoint. Nothing here imports torch.

Each layout names the same parts of a layer: a norm of the embedding, a norm of the hidden state, the matrix that joins the two, a
decoder layer of the target's kind (``block``), and a norm of its output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from specframe_heads.formats.format import Format, final, of_speculators

PARTS = ("enorm", "hnorm", "eh_proj", "post_norm")
"""The parts of a layer apart from its block, as DeepSeek-V3 names all but the last."""

Place = tuple[int | None, str]
"""The MTP layer that a tensor is of (None: all of them), and its name there."""

TensorLayout = Callable[[str, int], Place | None]
"""The names that a kind of checkpoint has for the tensors of MTP layers: (name of a tensor, layers of the target) -> its place, or
None for a tensor of none."""


def places(layout: TensorLayout, names: Iterable[str], count: int) -> dict[str, Place]:
    """Return the places of the tensors of MTP layers, by their names in the checkpoint."""
    found = ((name, layout(name, count)) for name in names)
    return {name: place for name, place in found if place is not None}


def within(renamed: Mapping[str, str], part: str) -> str:
    """Return the name of a part in this package; what has no name of its own belongs to the block."""
    for theirs, ours in renamed.items():
        if part.startswith(f"{theirs}."):
            return ours + part.removeprefix(theirs)
    return f"block.{part}"


def after_the_last(name: str, count: int) -> Place | None:
    """Read DeepSeek-V3's and GLM-4.5's names: MTP layers are numbered on after the target's."""
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    if found is None or int(found[1]) < count or found[2].startswith(("shared_head.head.", "embed_tokens.")):
        return None  # the embedding and the head are the target's again
    renamed = {"shared_head.norm": "post_norm", **{part: part for part in PARTS[:3]}}
    return int(found[1]) - count, within(renamed, found[2])


def beside(name: str, count: int) -> Place | None:
    """Read Qwen3-Next's and Qwen3.5's names: a module ``mtp``, whose layers share all but the block."""
    if not name.startswith("mtp."):
        return None
    part = name.removeprefix("mtp.")
    if found := re.fullmatch(r"layers\.(\d+)\.(.+)", part):
        return int(found[1]), f"block.{found[2]}"
    shared = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "post_norm"}
    return None, within(shared, part)


def of_mtp_layers(name: str, count: int) -> Place | None:
    """Read the names of the ``speculators`` format."""
    found = re.fullmatch(r"mtp_layers\.(\d+)\.(.+)", name)
    renamed = {
        "token_layernorm": "enorm",
        "hidden_layernorm": "hnorm",
        "input_proj": "eh_proj",
        "final_layernorm": "post_norm",
    }
    return found and (int(found[1]), within(renamed, found[2]))


LAYOUTS: tuple[TensorLayout, ...] = (after_the_last, beside, of_mtp_layers)

OWN = Format(
    "MTP layers of the target", "mtp", lambda checkpoint: False, "specframe_heads.mtp.mtp_weights:of_target", final
)
"""Is never recognised: a target's checkpoint is a model, which may draft, too. The drafter ``mtp`` asks for it."""

FORMATS = (Format("speculators mtp", "mtp", of_speculators("mtp"), "specframe_heads.mtp.mtp_weights:in_a_file", final),)
