"""Traces of small models."""

from __future__ import annotations

from typing import Any

import torch

from specframe.contracts.model import ForwardOptions
from specframe.model.runner import ModelRunner


def runner_of(model: Any) -> ModelRunner:
    """Return a runner whose model was tried."""
    found = ModelRunner(model, "target")
    with torch.inference_mode():
        found.kv_shapes  # noqa: B018 - has the model tried
    return found


def layers_of(runner: ModelRunner, layers: str, rows: int = 3, width: int = 4, hidden: tuple[int, ...] = ()) -> Any:
    """Return what a forward of so many rows and tokens calls in the place of a model's modules, or None."""
    with torch.inference_mode():
        return runner.layers.of(ForwardOptions(layers=layers), rows, width, hidden)
