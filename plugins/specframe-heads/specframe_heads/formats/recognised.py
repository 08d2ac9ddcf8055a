"""The formats of all families, and the one of a checkpoint."""

from __future__ import annotations

import importlib
from pathlib import Path

from specframe.errors import ModelError
from specframe.models.local import CONFIG, holds, on_disk
from specframe.plugins.registry import quote
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.format import Format

FAMILIES = (
    "specframe_heads.eagle.eagle_formats",
    "specframe_heads.blocks.block_formats",
    "specframe_heads.mtp.mtp_formats",
    "specframe_heads.stepwise.step_formats",
)
"""The modules with formats, each in a tuple ``FORMATS``, the more particular ones first."""


def formats() -> tuple[Format, ...]:
    """Return all formats."""
    return tuple(one for module in FAMILIES for one in importlib.import_module(module).FORMATS)


def format_of(checkpoint: Checkpoint) -> Format:
    """Return the format of a checkpoint.

    Raises:
        ModelError: it is of no known format, or its files cannot be read.
    """
    found = next((one for one in formats() if one.recognises(checkpoint)), None)
    if found is None:
        known = ", ".join(one.name for one in formats())
        kind = checkpoint.config.get("speculators_model_type") or checkpoint.config.get("architectures")
        raise ModelError(f"{checkpoint} is no head of a known format: expected one of {known}, got {kind}")
    return found


def drafter_of(location: str) -> str | None:
    """Return the drafter that runs the head at a location, as ``name,checkpoint=location``, or None if there is no head.

    Only what is on disk is looked at: a name is checked without asking the hub.
    """
    folder = on_disk(location)
    if folder is None or not holds(folder, CONFIG):
        return None
    checkpoint = Checkpoint(location, Path(folder))
    try:
        found = next((one for one in formats() if one.recognises(checkpoint)), None)
    except ModelError:  # whoever loads it as a model says what is wrong
        return None
    return None if found is None else f"{found.drafter},{quote(f'checkpoint={location}')}"
