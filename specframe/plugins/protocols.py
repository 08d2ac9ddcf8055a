"""Check that a strategy has the members of its role's protocol, before its first use."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Set
from typing import Any

import torch

from specframe.contracts import attention, cache, constraints, engine, model, positions, roles, states
from specframe.contracts.drafts import Budget
from specframe.errors import OptionError, literal

PROTOCOLS: Mapping[str, type] = {
    "drafter": roles.Drafter,
    "verifier": roles.Verifier,
    "acceptance rule": roles.AcceptanceRule,
    "alignment": roles.Alignment,
    "scheduler": roles.Scheduler,
    "KV backend": cache.KVBackend,
    "draft-length policy": roles.BudgetPolicy,
    "attention backend": attention.AttentionBackend,
    "observer": roles.Observer,
    "executor": engine.Executor,
    "model": model.Model,
    "constraint": constraints.Constraint,
    "state kind": states.StateKind,
    "position kind": positions.PositionKind,
}
"""The protocol of every kind of object that takes part in a run, by the name errors use."""

OFFERED: Mapping[str, Mapping[str, type]] = {
    "drafter": {"budget": roles.SizedDrafter, "match": roles.MatchingDrafter, "captured": roles.CapturedDrafter},
    "acceptance rule": {"tree": roles.TreeRule},
    "KV backend": {"states": states.StateBackend, "rounded": cache.RoundingBackend, "drafts": cache.DraftsBackend},
    "draft-length policy": {"calibration": roles.CalibratedPolicy, "trees": roles.TreePolicy},
    "executor": {
        "remote": engine.RemoteExecutor,
        "loading": engine.LoadingExecutor,
        "ranks": engine.RankedExecutor,
        "datasets": engine.MappingExecutor,
        "files": engine.FilesExecutor,
    },
    "state kind": {"bitwise": states.BitwiseKind},
}
"""The larger protocols of kinds, by the word that an object of them offers."""

METHOD, PROPERTY = "method", "property"

TYPES: Mapping[str, type] = {
    "bool": bool,
    "int": int,
    "str": str,
    "frozenset[str]": Set,
    "Budget": Budget,
    "torch.device": torch.device,
}
"""Types of protocols' attributes, by annotation."""


def members(kind: str) -> Mapping[str, str]:
    """Return the members a kind's protocol asks for, sorted, each with its annotation, :data:`METHOD` or :data:`PROPERTY`."""
    return members_of(PROTOCOLS[kind])


@functools.cache
def members_of(asked: type) -> Mapping[str, str]:
    """Return the members that a protocol asks for, as :func:`members` does."""
    found: dict[str, str] = {}
    for protocol in asked.__mro__:
        found |= {name: METHOD for name, one in vars(protocol).items() if inspect.isfunction(one)}
        found |= {name: PROPERTY for name, one in vars(protocol).items() if isinstance(one, property)}
        found |= vars(protocol).get("__annotations__", {})
    return {name: found[name] for name in sorted(found) if not name.startswith("_")}


def fault(kind: str, given: Any, also: str = "") -> str | None:
    """Return why ``given`` is no object of a kind, as part of a sentence, or None if it is one. No method of it is called.

    ``also`` is what else could be given, as "a name or ".
    """
    asked = members(kind)
    expected = f"expected {also}an object with {', '.join(asked)}"
    if isinstance(given, type):
        return f"{expected}, got the class {given.__name__} and not an object of it"
    lacking = [name for name in asked if not _has(given, name)]
    if len(lacking) == len(asked):
        return f"{expected}, got {literal(given)}"
    if lacking:
        contract = f"{PROTOCOLS[kind].__module__}.{PROTOCOLS[kind].__name__}"
        return f"{expected}, got {type(given).__name__} without {', '.join(lacking)} (the contract is {contract})"
    for name, annotation in asked.items():
        got = None if annotation == PROPERTY else getattr(given, name)
        if annotation == PROPERTY or (callable(got) if annotation == METHOD else isinstance(got, TYPES[annotation])):
            continue
        return f"expected {name} of {type(given).__name__} to be of type {annotation}, got {literal(got)}"
    offers = getattr(given, "offers", ())  # a kind of state may offer nothing
    for word, protocol in OFFERED.get(kind, {}).items():
        if word in offers and (lacking := [name for name in members_of(protocol) if not _has(given, name)]):
            contract = f"the contract is {protocol.__module__}.{protocol.__name__}"
            return f"expected {type(given).__name__}, which offers {word!r}, to have {', '.join(lacking)} ({contract})"
    return None


def _has(given: Any, name: str) -> bool:
    """Return whether an object has a member. A property of its class is not asked: it may be of use later only."""
    return hasattr(type(given), name) or hasattr(given, name)


def require_members(kind: str, given: Any, called: str | None = None, also: str = "") -> None:
    """Raise :class:`OptionError`, with what it is ``called`` in the message, where there is a :func:`fault`."""
    if why := fault(kind, given, also):
        raise OptionError(f"{called or kind}: {why}")
