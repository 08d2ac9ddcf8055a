"""The lab: commands that compare, verify, trace and reproduce, registered through the hook every plugin uses."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, hookimpl


@hookimpl
def specframe_register_commands(register: Register) -> None:
    register("compare", "specframe_lab.commands.compare_command:compare")
    register("verify", "specframe_lab.commands.verify_command:verify")
    register("reproduce", "specframe_lab.commands.reproduce_command:reproduce")
    register("trace", "specframe_lab.commands.trace:trace")
    register("predict", "specframe_lab.commands.predict_command:predict")
    register("plan", "specframe_lab.commands.plan:plan")
    register("laws", "specframe_lab.commands.laws:laws")
    register("plugins matrix", "specframe_lab.commands.matrix:matrix")
    register("models show", "specframe_lab.commands.show_model:show")
