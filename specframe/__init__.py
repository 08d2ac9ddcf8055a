"""Batched, lossless speculative decoding for Hugging Face models, in which every part is a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specframe.errors import SpecframeError
from specframe.hookspecs import hookimpl

if TYPE_CHECKING:
    from specframe.pipeline import Pipeline

__version__ = "0.1.0"
__all__ = ["Pipeline", "SpecframeError", "hookimpl"]


def __getattr__(name: str) -> Any:
    """Import ``Pipeline``, and torch with it, when it is first asked for."""
    if name == "Pipeline":
        from specframe.pipeline import Pipeline

        return Pipeline
    raise AttributeError(f"module 'specframe' has no attribute {name!r}")
