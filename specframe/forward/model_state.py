"""What tells whether a model is as it was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from specframe.contracts.model import Model

PLAIN = (str, int, float, bool, type(None), torch.dtype, torch.device)
"""Types of a module's attributes that say how it computes."""
OWN = frozenset({"_parameters", "_buffers", "_modules", "training"})
"""Attributes of a module that say something else, or are looked at by themselves. A run sets ``training``."""


def weights(model: Model) -> list[tuple[tuple[int, int], int]]:
    """Return what tells whether a model's weights were replaced, or written to, but for writes through ``data``."""
    parameters: Iterable[torch.nn.Parameter] = model.module.parameters()
    return [(memory_of(one), 0 if one.is_inference() else one._version) for one in parameters]


def memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return which tensor this is, and where its numbers are, as far as it is one of torch's own type."""
    return id(tensor), tensor.data_ptr() if type(tensor) in (torch.Tensor, torch.nn.Parameter) else 0


def settings(module: torch.nn.Module) -> list[Any]:
    """Return what a recording of a model depends on and a store of its keys does not: where its tensors are, and its settings.

    Adapters that are switched are settings of the modules that have them. A weight that is written to stays where it is.
    """
    found: list[Any] = [memory_of(tensor) for tensor in (*module.parameters(), *module.buffers())]
    for one in module.modules():
        values = vars(one)
        found += [f"{name}={values[name]!r}" for name in values if name not in OWN and is_plain(values[name])]
        called = (*one._forward_hooks.values(), *one._forward_pre_hooks.values(), values.get("forward"))
        found.append([*map(id, called)])
    return found


def is_plain(value: Any) -> bool:
    """Return whether an attribute is a number, a text or the like, or holds such alone."""
    if isinstance(value, dict):
        return all_plain(value) and all_plain(value.values())
    return all_plain(value) if isinstance(value, list | tuple | set | frozenset) else isinstance(value, PLAIN)


def all_plain(values: Iterable[Any]) -> bool:
    """Return whether all of several values are plain."""
    return all(is_plain(value) for value in values)
