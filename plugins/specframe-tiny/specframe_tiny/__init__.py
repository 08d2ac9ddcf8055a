"""The embedded default pair, as model aliases ``tiny`` and ``tiny-draft``, and heads for it, as ``tiny-eagle3`` and others.

A head is registered when its folder is there: :mod:`specframe_tiny.train_heads` makes them. specframe-heads runs them.
"""

from __future__ import annotations

from pathlib import Path

from specframe.plugins.hookspecs import RegisterDefaults, RegisterModels, hookimpl

FOLDER = Path(__file__).parent
HEADS = ("eagle3", "medusa", "clover2", "dflash")
"""The kinds of heads, each in a folder of that name below ``heads``."""


@hookimpl
def specframe_register_defaults(register: RegisterDefaults) -> None:
    register("target", "tiny")


@hookimpl
def specframe_register_models(register: RegisterModels) -> None:
    register("tiny", str(FOLDER / "target"))
    # the first of the drafters: "auto" takes it, which needs no specframe-heads
    register("tiny-draft", str(FOLDER / "draft"), target="tiny")
    for kind in HEADS:
        if (folder := FOLDER / "heads" / kind).is_dir():
            register(f"tiny-{kind}", str(folder), target="tiny")
