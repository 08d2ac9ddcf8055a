"""The formats of EAGLE heads: `speculators`, the layout of the authors (SafeAILab), ModelOpt's. Nothing here imports torch."""

from __future__ import annotations

from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.format import Format, final, given_ids, of_speculators
from specframe_heads.formats.keys import Keys

BUILD = "specframe_heads.eagle.eagle_weights:"
IDS = "eagle_aux_hidden_state_layer_ids"
"""The key of the layer ids."""


SPECULATORS = frozenset({
    "speculators_model_type", "speculators_version", "speculators_config", "transformer_layer_config", "draft_vocab_size",
    "target_hidden_size", "embed_requires_grad", "mask_token_id",
})  # fmt: skip
"""The keys that all kinds of heads of `speculators` have."""
SPECULATORS_3 = SPECULATORS | {IDS, "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"}
SPECULATORS_1 = SPECULATORS | {"layernorms", "fusion_bias"}
OF_ENGINES = Keys(
    "eagle_config",
    read=frozenset({IDS, "parallel_draft_heads_num_layers"}),
    fixed={
        "use_aux_hidden_state": (True,),
        "use_input_layernorm_in_first_layer": (True,),
        "use_last_layernorm": (True,),
        "use_mtp_layernorm": (False,),
        "next_layer_regular": (True,),
        "parallel_draft_step": (0, 1),
    },
)
"""The object that SGLang and ModelOpt write. EAGLE-3 with other values is another network."""


def low_middle_high(layers: int) -> tuple[int, int, int]:
    """Return the hidden states that EAGLE-3 reads where a file does not say: those of a low, the middle and a high layer."""
    return 2, layers // 2, layers - 3


def speculators_ids(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
    """Return the layer ids of a file in the format of `speculators`."""
    return given_ids(checkpoint, IDS) or low_middle_high(layers)


def authors_ids(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
    """Return the hidden states of a file in the authors' layout.

    Theirs have no layer ids. A file of SGLang may have some in ``eagle_config``, where id k is the output of layer k, which is
    hidden state k + 1.
    """
    return tuple(one + 1 for one in given_ids(checkpoint, IDS, "eagle_config")) or low_middle_high(layers)


def modelopt_ids(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
    """Return the layer ids of a file of ModelOpt; where it does not say, three layers near the start, the middle and the end."""
    given = given_ids(checkpoint, IDS, "eagle_config")
    return given or tuple(sorted({1, max(0, layers // 2 - 1), max(0, layers - 4)}))


def is_authors_3(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is EAGLE-3 in the authors' layout: its first layer takes twice the hidden size."""
    if "speculators_model_type" in checkpoint.config or "midlayer." not in "".join(checkpoint.names):
        return False
    return {"fc.weight", "midlayer.self_attn.q_proj.weight", "midlayer.hidden_norm.weight"} <= checkpoint.names


def is_modelopt_3(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is EAGLE-3 as ModelOpt exports it: the authors' modules, with a first layer named as others."""
    wanted = {"fc.weight", "layers.0.self_attn.q_proj.weight", "layers.0.hidden_norm.weight"}
    return "speculators_model_type" not in checkpoint.config and wanted <= checkpoint.names


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
        of_speculators("eagle3"),
        BUILD + "speculators_3",
        speculators_ids,
        keys=(Keys(read=SPECULATORS_3, family="llama"),),
    ),
    Format(
        "speculators eagle",
        "eagle",
        of_speculators("eagle"),
        BUILD + "speculators_1",
        final,
        keys=(Keys(read=SPECULATORS_1, family="llama"),),
    ),
    Format("EAGLE-3", "eagle", is_authors_3, BUILD + "authors_3", authors_ids, keys=(OF_ENGINES,)),
    Format(
        "ModelOpt EAGLE-3", "eagle", is_modelopt_3, BUILD + "modelopt_3", modelopt_ids, offset=1, keys=(OF_ENGINES,)
    ),
    Format("EAGLE-1 and 2", "eagle", is_authors_1, BUILD + "authors_1", final),
)
