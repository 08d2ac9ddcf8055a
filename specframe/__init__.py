"""Batched, lossless speculative decoding for Hugging Face models, in which every part is a plugin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from specframe.errors import SpecframeError
from specframe.hookspecs import hookimpl

if TYPE_CHECKING:
    from specframe.drop_in import assisted
    from specframe.pipeline import Pipeline
    from specframe.sampling import Sampling

__version__ = "0.1.0"
__all__ = ["Pipeline", "Sampling", "SpecframeError", "assisted", "hookimpl"]

_HEAVY = {"Pipeline": "specframe.pipeline", "Sampling": "specframe.sampling", "assisted": "specframe.drop_in"}
"""Names that bring torch with them: imported when they are first asked for."""


def __getattr__(name: str) -> Any:
    """Import a name of :data:`_HEAVY` when it is first asked for."""
    if name not in _HEAVY:
        raise AttributeError(f"module 'specframe' has no attribute {name!r}")
    return getattr(importlib.import_module(_HEAVY[name]), name)
