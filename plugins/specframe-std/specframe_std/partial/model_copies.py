"""Copies of a model that have its own modules, but for some. The model itself, and who else runs it, see nothing of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch


def with_module(whole: torch.nn.Module, path: list[str], part: torch.nn.Module) -> torch.nn.Module:
    """Return a module with another part at a path, made of the same parts elsewhere; the given one is left as it is."""
    if not path:
        return part
    made = _copied(whole)
    held = cast(torch.nn.Module, whole._modules[path[0]])
    made._modules = {**whole._modules, path[0]: with_module(held, path[1:], part)}
    return made


def with_modules(model: torch.nn.Module, parts: Mapping[str, torch.nn.Module]) -> torch.nn.Module:
    """Return a model with other parts at some paths, as :meth:`torch.nn.Module.get_submodule` takes these."""
    for path, part in parts.items():
        model = with_module(model, path.split("."), part)
    return model


def with_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> torch.nn.Module:
    """Return a module with the same parts and attributes that computes something else; the given one is left as it is.

    ``forward`` is called with the module that is returned, or its twin, before the arguments.
    """
    made = _copied(module)
    made.__dict__["_before"] = made.__dict__.get("forward")
    made.__dict__["forward"] = functools.partial(forward, made)
    return made


def before(module: torch.nn.Module) -> Callable[..., Any]:
    """Return the ``forward`` that a module had before :func:`with_forward`."""
    kept = module.__dict__.get("_before")
    return functools.partial(type(module).forward, module) if kept is None else cast("Callable[..., Any]", kept)


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    """Return another module with the same parts and attributes."""
    made: Any = object.__new__(type(module))
    made.__dict__.update(module.__dict__)
    return cast(torch.nn.Module, made)
