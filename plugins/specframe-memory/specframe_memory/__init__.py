"""Plans of memory: what a run takes, by memory profiling, and the option ``memory``, which keeps a run within a number of bytes."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, hookimpl


@hookimpl
def specframe_register_options(register: Register) -> None:
    register("memory", "specframe_memory.memory_bound:PlannedBound")
