"""Device memory that runs out: how it is known, and what is done on the host instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Made = TypeVar("Made")


def out_of_memory(error: RuntimeError) -> bool:
    """Return whether a device had no memory left; on a CPU that is no class of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def with_room(function: Callable[..., Made], *tensors: torch.Tensor) -> Made:
    """Return ``function(*tensors)``, or where the tensors' device has no memory for it, the same on the host.

    It is called once more then: it leaves nothing behind where it raises.
    """
    try:
        return function(*tensors)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    return function(*(tensor.cpu() for tensor in tensors))
