"""The embedded default pair, as model aliases ``tiny`` and ``tiny-draft``."""

from __future__ import annotations

from pathlib import Path

from specframe.plugins.hookspecs import RegisterDefaults, RegisterModels, hookimpl

FOLDER = Path(__file__).parent


@hookimpl
def specframe_register_defaults(register: RegisterDefaults) -> None:
    register("target", "tiny")


@hookimpl
def specframe_register_models(register: RegisterModels) -> None:
    register("tiny", str(FOLDER / "target"))
    register("tiny-draft", str(FOLDER / "draft"), target="tiny")
