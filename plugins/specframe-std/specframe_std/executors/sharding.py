"""Models split by transformers, layer by layer: its plan for each architecture says which matrices are cut, and where."""

from __future__ import annotations

import zlib
from typing import Any

from specframe.errors import ModelError


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
