"""Device memory that ran out."""

from __future__ import annotations

import torch

from specframe.errors import ModelError


def out_of_memory(error: RuntimeError) -> bool:
    """Return whether a device had no memory left; on a CPU that is no class of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def too_small(error: RuntimeError) -> ModelError:
    """Return the error that says that the memory does not suffice for one row, in the allocator's words."""
    reason = str(error).partition("DefaultCPUAllocator: ")[2] or str(error)
    return ModelError(f"the device's memory does not suffice for one sequence: {reason.partition('. ')[0]}")
