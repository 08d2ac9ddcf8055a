"""Words for the errors of strategies: whose strategy it is, where the error arose, and the value that was wrong."""

from __future__ import annotations

import traceback
from typing import Any

import torch

from specframe.errors import literal, sentence
from specframe.plugins.entries import Entry
from specframe.plugins.registry import registry
from specframe.value_checks import unwrap_guards


def strategy_name(kind: str, strategy: Any) -> str:
    """Return a strategy's name for errors: its role, and its registered name and distribution, if any."""
    if entry := registry().entry_of(kind, strategy):
        return str(entry)
    made = type(unwrap_guards(strategy))
    owners = {entry.distribution for entry in registry() if package_of(module_of(entry)) == package_of(made.__module__)}
    return f"{kind} {made.__qualname__}" + (f" of {owners.pop()}" if len(owners) == 1 else "")


def value_words(value: Any) -> str:
    """Return a wrong value in words on one line."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return " ".join(literal(value).split())


def package_of(module: str) -> str:
    """Return a module's outermost package."""
    return module.partition(".")[0]


def module_of(entry: Entry) -> str:
    """Return the module that an entry's factory is in."""
    if isinstance(entry.reference, str):
        return entry.reference.partition(":")[0]
    return str(getattr(entry.reference, "__module__", ""))


IDS_ON_CUDA = (
    " (on CUDA a token id beyond the vocabulary does this; with --device cpu, or --check, the error names whose it is)"
)
"""Advice added to the device's own message."""


def error_text(error: BaseException, strategy: Any) -> str:
    """Return an error in words, with the innermost place in the strategy's package that it passed through."""
    package, at = package_of(type(unwrap_guards(strategy)).__module__), ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if package_of(frame.f_globals.get("__name__", "")) == package:
            at = f", at {frame.f_code.co_filename}:{line}"
    hint = IDS_ON_CUDA if "device-side assert" in str(error) else ""
    return f"{type(error).__name__}: {sentence(error)}{at}{hint}"
