"""The executor ``ray``: files of prompts are decoded by actors of a Ray cluster."""

from __future__ import annotations

from typing import Any

from specframe.plugins.hookspecs import Register, hookimpl

__all__ = ["map", "specframe_register_executors"]


def __getattr__(name: str) -> Any:
    """Import ``map``, and Ray with it, when it is asked for."""
    if name != "map":
        raise AttributeError(f"module 'specframe_ray' has no attribute {name!r}")
    from specframe_ray import job

    return job.map


@hookimpl
def specframe_register_executors(register: Register) -> None:
    register("ray", "specframe_ray.executor:Ray")
