"""The formats of EAGLE heads: `speculators`, and the layout of the authors (SafeAILab). Nothing here imports torch."""

from __future__ import annotations

from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.format import Format, final

BUILD = "specframe_heads.eagle.loading:"


def low_middle_high(layers: int) -> tuple[int, int, int]:
    """Return the hidden states that EAGLE-3 reads where a file does not say: those of a low, the middle and a high layer."""
    return 2, layers // 2, layers - 3


def speculators_ids(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
    """Return the layer ids of a file in the format of `speculators`."""
    return tuple(checkpoint.config.get("eagle_aux_hidden_state_layer_ids") or low_middle_high(layers))


def authors_ids(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
    """Return the hidden states of a file in the authors' layout.

    Theirs have no layer ids. A file of SGLang may have some in ``eagle_config``, where id k is the output of layer k, which is
    hidden state k + 1.
    """
    nested = checkpoint.config.get("eagle_config")
    given = nested.get("eagle_aux_hidden_state_layer_ids") if isinstance(nested, dict) else None
    return tuple(one + 1 for one in given) if given else low_middle_high(layers)


def is_speculators(checkpoint: Checkpoint, kind: str) -> bool:
    """Return whether a configuration is one of `speculators`, for one kind of drafter."""
    return checkpoint.config.get("speculators_model_type") == kind


def is_authors_3(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is EAGLE-3 in the authors' layout: its first layer takes twice the hidden size."""
    if "speculators_model_type" in checkpoint.config or "midlayer." not in "".join(checkpoint.names):
        return False
    return {"fc.weight", "midlayer.self_attn.q_proj.weight", "midlayer.hidden_norm.weight"} <= checkpoint.names


def is_authors_1(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is EAGLE-1 or EAGLE-2 in the authors' layout: its first layer has no norm of its input."""
    if "speculators_model_type" in checkpoint.config:
        return False
    names = {name.removeprefix("model.") for name in checkpoint.names}
    wanted = {"fc.weight", "layers.0.self_attn.q_proj.weight", "layers.0.post_attention_layernorm.weight"}
    return wanted <= names and not {"layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"} & names


FORMATS = (
    Format(
        "speculators eagle3",
        "eagle",
        lambda one: is_speculators(one, "eagle3"),
        BUILD + "speculators_3",
        speculators_ids,
    ),
    Format("speculators eagle", "eagle", lambda one: is_speculators(one, "eagle"), BUILD + "speculators_1", final),
    Format("EAGLE-3", "eagle", is_authors_3, BUILD + "authors_3", authors_ids),
    Format("EAGLE-1 and 2", "eagle", is_authors_1, BUILD + "authors_1", final),
)
