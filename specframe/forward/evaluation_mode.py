"""Models are in evaluation mode while a run decodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from specframe.forward.current_forward import Changed, own_values


@contextlib.contextmanager
def evaluation_mode(*models: torch.nn.Module | None) -> Iterator[None]:
    """Put models in evaluation mode inside the block, and each of their modules back in the mode it was in; None is passed over.

    Modules go back after the last thread that decodes with them.
    """
    modules = [module for model in models if model is not None for module in model.modules()]
    training = [module for module, so in zip(modules, own_values(modules, "training"), strict=True) if so]
    with Changed(training, "training", lambda _: False):
        yield
