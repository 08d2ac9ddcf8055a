"""The executor ``ray``: files of prompts and data sets are decoded by actors of a Ray cluster."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, hookimpl


@hookimpl
def specframe_register_executors(register: Register) -> None:
    register("ray", "specframe_ray.ray_executor:Ray")
