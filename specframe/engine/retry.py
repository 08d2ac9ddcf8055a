"""Device memory that ran out."""

from __future__ import annotations

from specframe.errors import ModelError


def too_small(error: RuntimeError) -> ModelError:
    """Return the error that says that the memory does not suffice for one row, in the allocator's words."""
    reason = str(error).partition("DefaultCPUAllocator: ")[2] or str(error)
    return ModelError(f"the device's memory does not suffice for one sequence: {reason.partition('. ')[0]}")
