"""The plugin that is part of specframe: it registers through the hooks that every plugin uses."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, RegisterDefaults, hookimpl


@hookimpl
def specframe_register_executors(register: Register) -> None:
    """Offer the executor of this process."""
    register("local", "specframe.engine.local_engine:Local")


@hookimpl
def specframe_register_defaults(register: RegisterDefaults) -> None:
    """Have models run in this process unless another executor is named."""
    register("executor", "local")


@hookimpl
def specframe_register_commands(register: Register) -> None:
    """Register the command that lists what is installed."""
    register("plugins", "specframe.cli.plugins:plugins")


@hookimpl
def specframe_register_attention_backends(register: Register) -> None:
    """Offer mask tensors, which serve every model."""
    register("masked", "specframe.model.attention.masks:Masked")
