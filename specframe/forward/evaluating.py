"""Models are in evaluation mode while a run decodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def evaluating(*models: torch.nn.Module | None) -> Iterator[None]:
    """Put models in evaluation mode inside the block, and each of their modules back in the mode it was in; None is passed over."""
    training = [module for model in models if model is not None for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
