"""Drafters that read the target's features, and the formats of their checkpoints."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, hookimpl


@hookimpl
def specframe_register_drafters(register: Register) -> None:
    register("eagle", "specframe_heads.eagle.eagle_drafter:Eagle")
    register("medusa", "specframe_heads.stepwise.step_drafter:MedusaDrafter")
    register("hydra", "specframe_heads.stepwise.step_drafter:HydraDrafter")
    register("clover", "specframe_heads.stepwise.step_drafter:CloverDrafter")
    register("clover2", "specframe_heads.stepwise.step_drafter:Clover2Drafter")
    register("dflash", "specframe_heads.blocks.block_drafter:DFlashDrafter")
    register("dspark", "specframe_heads.blocks.block_drafter:DSpark")
    register("mtp", "specframe_heads.mtp.mtp_drafter:Mtp")
    register("peagle", "specframe_heads.blocks.peagle:PEagle")
    register("pard", "specframe_heads.blocks.pard:Pard")


@hookimpl
def specframe_register_commands(register: Register) -> None:
    register("models check", "specframe_heads.commands.check_command:check")
    register("heads", "specframe_heads.commands.heads:heads")


@hookimpl
def specframe_register_checkpoints(register: Register) -> None:
    register("heads", "specframe_heads.formats.recognised:drafter_of")
