"""The server: ``specframe serve`` answers OpenAI's requests from one stepped engine."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, hookimpl


@hookimpl
def specframe_register_commands(register: Register) -> None:
    register("serve", "specframe_serve.serve_command:serve")
