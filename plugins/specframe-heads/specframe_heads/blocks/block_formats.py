"""The formats of DFlash, DSpark, P-EAGLE and PARD checkpoints. Nothing here imports torch.

``speculators`` numbers layers as transformers numbers hidden states. In z-lab's and DeepSpec's files an id means the output of a
layer, whose number is one more; -1 is the embedding in DeepSpec's.
"""

from __future__ import annotations

from specframe_heads.checkpoint import Checkpoint, nested, number
from specframe_heads.eagle.eagle_formats import SPECULATORS, low_middle_high
from specframe_heads.eagle.eagle_formats import SPECULATORS_3 as EAGLE_3
from specframe_heads.eagle.eagle_formats import speculators_ids as eagle_ids
from specframe_heads.formats.format import Format, given_ids, of_speculators
from specframe_heads.formats.keys import Keys


def evenly(targets: int, layers: int) -> tuple[int, ...]:
    """Return z-lab's default ids: as many as the head has layers, from 1 to three before the target's last."""
    if layers == 1:
        return (targets // 2,)
    step = (targets - 4) / (layers - 1)
    return tuple(round(1 + layer * step) for layer in range(layers))


def speculators_ids(checkpoint: Checkpoint, count: int) -> tuple[int, ...]:
    """Return the ids of the ``speculators`` format; its default is that of EAGLE-3."""
    return given_ids(checkpoint, "aux_hidden_state_layer_ids") or low_middle_high(count)


def z_lab_ids(checkpoint: Checkpoint, count: int) -> tuple[int, ...]:
    """Return the ids of z-lab's format."""
    config = checkpoint.config
    targets, layers = number(config, "num_target_layers") or count, number(config, "num_hidden_layers") or 1
    return given_ids(checkpoint, "target_layer_ids", "dflash_config") or evenly(targets, layers)


def deepspec_ids(checkpoint: Checkpoint, count: int) -> tuple[int, ...]:
    """Return the ids of DeepSpec's format."""
    layers = number(checkpoint.config, "num_hidden_layers") or 1
    return given_ids(checkpoint, "target_layer_ids") or evenly(count, layers)


def is_deepspec(checkpoint: Checkpoint) -> bool:
    """Return whether the first of a checkpoint's architectures is one of DeepSpec's."""
    return str((checkpoint.config.get("architectures") or [""])[0]).endswith("DSparkModel")


OF_BLOCKS = SPECULATORS | {
    "block_size", "aux_hidden_state_layer_ids", "sliding_window_non_causal", "sample_from_anchor",
    "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
}  # fmt: skip
OF_Z_LAB = Keys(
    "dflash_config",
    read=frozenset(
        {"mask_token_id", "target_layer_ids", "causal", "block_size", "use_swa", "swa_window_size", "draft_arch"}
    ),
    fixed={
        "attention_sink_bias": (False,),
        "fc_layernorm": (False,),
        "use_aux_hidden_state": (True,),
        "projector_type": ("dflash",),
    },
)
OF_DEEPSPEC = frozenset({
    "block_size", "mask_token_id", "target_layer_ids", "num_target_layers", "num_anchors", "markov_rank", "markov_head_type",
    "enable_confidence_head", "confidence_head_with_markov",
})  # fmt: skip

FORMATS = (
    Format(
        "speculators peagle",
        "peagle",
        of_speculators("peagle"),
        "specframe_heads.blocks.peagle:speculators",
        eagle_ids,
        keys=(Keys(read=EAGLE_3, family="llama"),),
    ),
    *(
        Format(
            f"speculators {kind}",
            kind,
            of_speculators(kind),
            "specframe_heads.blocks.block_weights:speculators",
            speculators_ids,
            keys=(Keys(read=OF_BLOCKS, family="qwen3"),),
        )
        for kind in ("dspark", "dflash")
    ),
    Format(
        "z-lab DFlash",
        "dflash",
        lambda checkpoint: bool(nested(checkpoint.config, "dflash_config")),
        "specframe_heads.blocks.block_weights:z_lab",
        z_lab_ids,
        offset=1,
        keys=(
            OF_Z_LAB,
            Keys(read=frozenset({"dflash_config", "block_size", "num_target_layers", "is_causal"}), family="qwen3"),
        ),
    ),
    Format(
        "DeepSpec",
        "dspark",
        is_deepspec,
        "specframe_heads.blocks.block_weights:deepspec",
        deepspec_ids,
        offset=1,
        keys=(Keys(read=OF_DEEPSPEC, family="qwen3"),),
    ),
    Format(
        "PARD",
        "pard",
        lambda checkpoint: "pard_token" in checkpoint.config,
        "specframe_heads.blocks.pard:pard",
        lambda checkpoint, count: (),  # it reads no features
    ),
)
