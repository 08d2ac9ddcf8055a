"""The server: ``specframe serve`` answers OpenAI's requests from one stepped engine."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, hookimpl


@hookimpl
def specframe_register_commands(register: Register) -> None:
    register(
        "serve",
        "specframe_serve.command:serve",
        summary="Answer OpenAI's requests for completions from one engine, and show live acceptance at /.",
    )
