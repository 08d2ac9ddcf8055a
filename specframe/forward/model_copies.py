"""Copies of a model that have its own modules, but for some. The model itself, and who else runs it, see nothing of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from specframe.forward.current_forward import own_value


def with_module(whole: torch.nn.Module, path: list[str], part: torch.nn.Module) -> torch.nn.Module:
    """Return a module with another part at a path, made of the same parts elsewhere; the given one is left as it is."""
    if not path:
        return part
    made = _twin(whole)
    held = cast(torch.nn.Module, whole._modules[path[0]])
    made._modules = {**whole._modules, path[0]: with_module(held, path[1:], part)}
    return made


def with_modules(model: torch.nn.Module, parts: Mapping[str, torch.nn.Module]) -> torch.nn.Module:
    """Return a model with other parts at some paths, as :meth:`torch.nn.Module.get_submodule` takes these."""
    for path, part in parts.items():
        model = with_module(model, path.split("."), part)
    return model


def with_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> torch.nn.Module:
    """Return a module with the same parts and attributes that computes something else; the given one is left as it is."""
    made = _twin(module)
    made.__dict__["forward"] = forward
    return made


def _twin(module: torch.nn.Module) -> torch.nn.Module:
    """Return another module with the same parts and attributes, and with the ``forward`` that it has outside of forwards."""
    made: Any = object.__new__(type(module))
    made.__dict__.update(module.__dict__)
    if getattr(own_value(module, "forward"), "__self__", None) is module:
        made.__dict__.pop("forward", None)  # that of a forward under way calls the other one
    return cast(torch.nn.Module, made)
