"""The lab: commands that compare, verify, trace and reproduce, registered through the hook every plugin uses."""

from __future__ import annotations

from specframe.plugins.hookspecs import Register, hookimpl


@hookimpl
def specframe_register_commands(register: Register) -> None:
    register(
        "compare",
        "specframe_lab.commands.compare:compare",
        summary="Compare schemes: every combination of the values given, and plain decoding at each batch size.",
    )
    register(
        "verify",
        "specframe_lab.commands.verify:verify",
        summary="Compare combinations with the reference decoder, token for token.",
    )
    register(
        "reproduce",
        "specframe_lab.commands.reproduce:reproduce",
        summary="Reproduce the tables of the paper on batched speculative decoding with any pair.",
    )
    register(
        "trace",
        "specframe_lab.commands.trace:trace",
        summary="Show what happens in the KV cache: a page that steps through the rounds of one small batch.",
    )
    register(
        "predict",
        "specframe_lab.commands.predict:predict",
        summary="Predict the speed of a pair on a device, by what its forwards read and compute.",
    )
    register(
        "plan",
        "specframe_lab.commands.plan:plan",
        summary="Plan the memory of a pair: what fits, by parts, how fast it is, the least that runs, and the knee.",
    )
    register(
        "laws",
        "specframe_lab.commands.laws:laws",
        summary="Fit how acceptance grows with a draft's training and depth, and the best budget by batch size.",
    )
    register(
        "plugins matrix",
        "specframe_lab.commands.matrix:matrix",
        summary="Show which alignments and attention backends run on which KV backends, "
        "and what each alignment asks for by default.",
    )
    register(
        "models show",
        "specframe_lab.commands.show_model:show",
        summary="Show a model's location, its paired models, and its sizes if it is on disk.",
    )
