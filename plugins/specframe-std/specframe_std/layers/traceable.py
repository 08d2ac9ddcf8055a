"""Why a model's forward cannot be traced: what no trace would show, and what it changes of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from specframe.model.twin import hooks_of, sets_own_buffers

if TYPE_CHECKING:
    from specframe.model.runner import ModelRunner


def put_back(module: torch.nn.Module, *held: dict[str, Any]) -> bool:
    """Give a module the attributes, buffers and parameters that it had; return whether it had them still."""
    same = True
    found: tuple[dict[str, Any], ...] = vars(module), module._buffers, module._parameters
    for now, then in zip(found, held, strict=True):
        if now.keys() != then.keys() or any(now[name] is not then[name] for name in then):
            same = False
            now.clear()
            now.update(then)
    return same


def untraceable(model: ModelRunner) -> str | None:
    """Return why no trace of a model would show what it computes, or None if there is no such reason."""
    if model.indexed:
        return "it has layers that choose what they attend to"
    if model.counts.relative:
        return "it adds a bias to scores by the slots of keys"
    modules = [*model.twin.modules()]
    if changing := [one for one in modules if sets_own_buffers(one)]:
        return f"{type(changing[0]).__name__} computes its factors from the longest position"
    if hooked := [one for one in modules if hooks_of(one)]:
        return f"{type(hooked[0]).__name__} has hooks"
    kinds = {type(one) for part in modules for one in (*part._parameters.values(), *part._buffers.values())}
    if others := kinds - {torch.Tensor, torch.nn.Parameter, type(None)}:
        return f"it has weights of type {next(iter(others)).__name__}"
    if len({one.device for one in model.twin.parameters()}) > 1:
        return "its weights are on several devices"
    return None
