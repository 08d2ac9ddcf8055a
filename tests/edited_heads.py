"""Heads' checkpoints with other tensors or another configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def edited(folder: str | Path, tensors: Change | None = None, **config: Any) -> Path:
    """Change the tensors of a head, and keys of its configuration, in their place; return its folder."""
    path, file = Path(folder, "config.json"), Path(folder, "model.safetensors")
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    if tensors:
        save_file(tensors(load_file(file)), file)
    return path.parent


def without(*parts: str) -> Change:
    """Return what drops the tensors with one of these parts in their names."""
    return lambda held: {name: one for name, one in held.items() if not any(part in name for part in parts)}
