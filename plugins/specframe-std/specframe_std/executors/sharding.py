"""Models split by transformers, layer by layer: its plan for each architecture says which matrices are cut, and where.

Which models can be split is asked of their configuration, before weights are read.
"""

from __future__ import annotations

import zlib
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


def configuration(ranks: int) -> Any:
    """Return transformers' description of a model that is split over ``ranks`` ranks."""
    from transformers.distributed import DistributedConfig

    return DistributedConfig(tp_size=ranks)


def checksum(model: Any) -> int:
    """Return a number that models of another architecture or size do not have."""
    return zlib.crc32(repr([(name, tuple(one.shape)) for name, one in model.named_parameters()]).encode())


def groups(model: Any, role: str, ranks: int) -> list[str]:
    """Return the names of the process groups that a split model's ranks speak in.

    Raises:
        ModelError: the model is whole, because it was given loaded.
    """
    from torch.distributed.tensor import DTensor

    meshes = {id(one.device_mesh): one.device_mesh for one in model.parameters() if isinstance(one, DTensor)}
    found = {group.group_name for mesh in meshes.values() for group in mesh.get_all_groups() if group.size() == ranks}
    if not found:
        raise ModelError(
            f"the {role} is a loaded {type(model).__name__}, and whole: expected a name or a directory with executor tp, or a "
            f"model loaded with DistributedConfig(tp_size={ranks})"
        )
    return sorted(found)
