"""The formats of Medusa, Hydra, Clover and Clover-2. Nothing here imports torch."""

from __future__ import annotations

import re

from specframe_heads.checkpoint import Checkpoint, number
from specframe_heads.formats.format import Format, final

BUILD = "specframe_heads.stepwise.step_weights:"

FASTER_DECODING = re.compile(r"(medusa_heads?\.)?\d+\.0\.linear\.weight")


BASE = ((r"(base_model\.)?(model|lm_head)\..*", "the fine-tuned model that the heads are for"),)
EMBEDDING = ((r"prefix_embeding_layer\.embed_tokens\.weight", "the layer is fed features and no tokens"),)


def is_medusa(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is Medusa in the authors' layout, alone or in a fine-tuned base (Medusa-2)."""
    return any(FASTER_DECODING.fullmatch(name) for name in checkpoint.names)


def is_medusa_vllm(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is Medusa under vLLM's names."""
    return any(re.fullmatch(r"(medusa_heads\.)?blocks\.0\.layers\.0\.weight", name) for name in checkpoint.names)


def is_hydra(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is Hydra or Hydra++ in the authors' layout."""
    return "hydra_mlp.0.0.linear.weight" in checkpoint.names or "hydra_mlp.0.1.linear.weight" in checkpoint.names


def is_clover2(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is Clover-2 in the authors' layout."""
    return "clover_head_mlp_rnn2.q.weight" in checkpoint.names


def is_clover(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is Clover in a layout of specframe's own: nobody published another."""
    return "Clover" in (checkpoint.config.get("architectures") or ()) and "gate.q.weight" in checkpoint.names


def hydra_ids(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
    """Return the hidden state that Hydra reads: the last, or one before it, counted from the end."""
    return (layers - (number(checkpoint.config, "hidden_state_offset") or 0),)


def before_norm(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
    """Return the number of the last layer's output, before the final norm, which follows those that transformers numbers."""
    return (layers + 1,)


FORMATS = (
    Format("Medusa", "medusa", is_medusa, BUILD + "medusa", final, unused=BASE),
    Format("Medusa of vLLM", "medusa", is_medusa_vllm, BUILD + "medusa", final, unused=BASE),
    Format("Hydra", "hydra", is_hydra, BUILD + "hydra", hydra_ids, unused=EMBEDDING),
    Format("Clover-2", "clover2", is_clover2, BUILD + "clover2", before_norm),
    Format("Clover", "clover", is_clover, BUILD + "clover", before_norm),
)
