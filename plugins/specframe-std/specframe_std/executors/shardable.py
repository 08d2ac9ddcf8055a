"""Which models can be split over ranks: asked of their configuration, before weights are read."""

from __future__ import annotations

from typing import Any

from specframe.errors import ModelError
from specframe.models.layer_configs import layer_configs

KEYS = ("k_proj", "qkv_proj", "query_key_value")
"""Modules whose outputs hold attention keys, alone or with queries and values."""

HEADS = ("num_key_value_heads", "num_attention_heads")
"""Numbers of heads in a configuration."""


def require_divisible(role: str, config: Any, ranks: int) -> None:
    """Raise :class:`ModelError` unless a model has a plan for tensor parallelism, and heads that the ranks share evenly.

    Args:
        role: "target" or "draft".
        config: the model's configuration; that of its language model counts.
        ranks: the number of processes.
    """
    text = config.get_text_config()
    kind, plan = text.model_type, getattr(text, "base_model_tp_plan", None)
    if not plan:
        raise ModelError(
            f"the {role} is a {kind} model: expected one that transformers has a tensor parallel plan for, got one without"
        )
    if not any(style == "colwise" and name.rpartition(".")[2] in KEYS for name, style in plan.items()):
        return  # every rank has all heads
    for name in HEADS:
        found = [getattr(one, name, None) for one in layer_configs(text)]
        counts = [count for one in found for count in (one if isinstance(one, list | tuple) else [one])]
        if odd := [one for one in counts if one is not None and one % ranks]:
            raise ModelError(f"the {role} has {name} {odd[0]}: expected a number that {ranks} ranks share evenly")
