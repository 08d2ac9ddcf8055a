"""Batched, lossless speculative decoding for Hugging Face models, in which every part is a plugin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.drop_in import accelerate, assisted
    from specframe.errors import SpecframeError
    from specframe.pipeline import Pipeline
    from specframe.plugins.hookspecs import hookimpl
    from specframe.text.sampling import Sampling

__version__ = "0.3.0"
__all__ = ["Pipeline", "Sampling", "SpecframeError", "accelerate", "assisted", "hookimpl"]

_WHERE = {
    "Pipeline": "specframe.pipeline",
    "Sampling": "specframe.text.sampling",
    "SpecframeError": "specframe.errors",
    "accelerate": "specframe.drop_in",
    "assisted": "specframe.drop_in",
    "hookimpl": "specframe.plugins.hookspecs",
}
"""Module of each public name. A module is imported at first use, since some import torch, and commands have to start fast."""


def __getattr__(name: str) -> Any:
    """Import a name of :data:`_WHERE` at its first use."""
    if name not in _WHERE:
        raise AttributeError(f"module 'specframe' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
