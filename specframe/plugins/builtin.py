"""The plugin that is part of specframe: it registers through the hooks that every plugin uses."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, RegisterDefaults, hookimpl


@hookimpl
def specframe_register_executors(register: Register) -> None:
    """Offer the executor of this process."""
    register(
        "local",
        "specframe.engine.local_executor:Local",
        summary="Decodes in this process.",
    )


@hookimpl
def specframe_register_defaults(register: RegisterDefaults) -> None:
    """Have models run in this process unless another executor is named."""
    register("executor", "local")


@hookimpl
def specframe_register_commands(register: Register) -> None:
    """Register the commands that need no further distribution."""
    register(
        "run",
        "specframe.cli.run:run",
        summary="Decode prompts, then say in a line what speculation gained.",
    )
    register(
        "plugins",
        "specframe.cli.plugins:plugins",
        summary="List plugins, show one, see which combine, start a new one. Without a subcommand, list them.",
    )


@hookimpl
def specframe_register_attention_backends(register: Register) -> None:
    """Register the attention backends that "auto" chooses from."""
    register(
        "masked",
        "specframe.forward.attention.masks:Masked",
        summary="Attends by mask tensors, on any device and in any precision.",
        offers={"chunk", "dense", "masks", "tree", "window"},
    )
    register(
        "packed",
        "specframe.forward.attention.packed:Packed",
        summary="Variable-length flash attention, without masks: on CUDA, in half precision, where slots are places.",
        offers={"dense", "lengths", "paged", "window"},
    )
    register(
        "flex",
        "specframe.forward.attention.flex:Flex",
        summary="FlexAttention, by blocks of queries and slots: makes no mask tensors; slow where there is no CUDA.",
        offers={"chunk", "compiled", "dense", "tree", "window"},
    )
