"""The plugin that is part of specframe: its own commands, registered through the hook every plugin uses."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, hookimpl


@hookimpl
def specframe_register_commands(register: Register) -> None:
    """Register the commands that need no further distribution."""
    register("run", "specframe.cli.run:run")
    register("plugins", "specframe.cli.plugins:plugins")
    register("models", "specframe.cli.models:models")
