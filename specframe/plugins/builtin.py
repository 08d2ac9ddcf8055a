"""The strategies of specframe itself, which come through the hooks as those of plugins do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from specframe.plugins.registry import Register

ROOM = "specframe.forward.attention"


@hookimpl
def specframe_register_attention_backends(register: Register) -> None:
    """Offer the attention backends that "auto" chooses from."""
    register("masked", f"{ROOM}.masks:Masked")
    register("packed", f"{ROOM}.packed:Packed")
    register("flex", f"{ROOM}.flex:Flex")
