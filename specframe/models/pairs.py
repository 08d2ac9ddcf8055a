"""Choice of target, drafter and draft model from names. The module does not import torch, so that a wrong name fails at once."""

from __future__ import annotations

import os
import sys
from typing import Any

from specframe.errors import ModelError, OptionError, UnknownNameError, shown
from specframe.models import aliases
from specframe.models.local import require_model_folder
from specframe.plugins.registry import parse_specification, registry


def choose(target: Any, drafter: Any) -> tuple[Any, Any, Any]:
    """Return the target, the drafter strategy, and the draft model or None.

    Args:
        target: an alias, a directory, a hub id or a loaded model; None: the target paired with ``drafter``, or ``tiny``.
        drafter: a model as for ``target``, a drafter's name with options, or a drafter object; None: plain decoding; "auto": the
            draft model paired with ``target``.

    Raises:
        OptionError: the target has another type, or "auto" finds no draft model for it.
        UnknownNameError, PluginError: no drafter or model has the name, or its plugin failed to load.
        ModelError: "auto" was given and the target's directory is missing.
    """
    target, drafter = as_text(target), as_text(drafter)
    if target is None:
        paired = aliases.paired_target(drafter) if isinstance(drafter, str) else None
        target = paired or "tiny"
    check_target(target)
    if drafter is None:
        return target, "none", None
    if isinstance(drafter, str) and drafter == "auto":
        drafter = aliases.paired_drafter(target) if isinstance(target, str) else None
        if drafter is None:
            if isinstance(target, str):
                check_location("target", target)
            raise OptionError(
                f"no draft model is known for target {str(target)[:80]!r}: name one as the drafter, or 'none' for plain decoding"
            )
    if isinstance(drafter, str):
        name, _ = parse_specification(drafter)
        drafters = registry().names("drafter")
        if name in drafters:
            return target, drafter, None
        try:
            aliases.resolve(drafter)
        except UnknownNameError as fault:
            raise UnknownNameError("drafter or model", drafter, [*drafters, *fault.known]) from None
        return target, "model", drafter
    return (target, "model", drafter) if is_module(drafter) else (target, drafter, None)


def as_text(given: Any) -> Any:
    """Return a path as text, and anything else unchanged."""
    return os.fspath(given) if isinstance(given, os.PathLike) else given


def is_module(given: Any) -> bool:
    """Return whether an object is a torch module; False if torch was never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.nn.Module)


def check_target(target: Any) -> None:
    """Raise :class:`OptionError` if the target is neither a name nor a model."""
    model = target.strip() if isinstance(target, str) else is_module(target) and hasattr(target, "config")
    if not model:
        raise OptionError(
            f"target: expected an alias, a directory, a hub id or a loaded transformers model, got {shown(target)}"
        )


def check_location(role: str, name: str) -> None:
    """Raise :class:`ModelError` if a name is a path without a model. A name that may be a hub id is not checked."""
    location = aliases.resolve(name)
    called = f"{role} {name!r}" + (f" ({location})" if location != name else "")
    require_model_folder(called, location)
    if location.startswith((".", "/", "~")) and not os.path.isdir(location):
        raise ModelError(f"{called} is not there: expected the directory of a saved model")
