"""Check that a strategy has the members of its role's protocol, before its first use."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Set
from typing import Any

from specframe.contracts import cache, constraints, engine, roles, states
from specframe.contracts.drafts import Budget
from specframe.errors import OptionError, shown

PROTOCOLS: Mapping[str, type] = {
    "drafter": roles.Drafter,
    "verifier": roles.Verifier,
    "acceptance rule": roles.AcceptanceRule,
    "alignment": roles.Alignment,
    "scheduler": roles.Scheduler,
    "KV backend": cache.KVBackend,
    "draft-length policy": roles.BudgetPolicy,
    "attention backend": roles.AttentionBackend,
    "observer": roles.Observer,
    "executor": engine.Executor,
    "constraint": constraints.Constraint,
    "state kind": states.StateKind,
}
"""The protocol of every kind of object that takes part in a run, by the name errors use."""

METHOD = "method"

TYPES: Mapping[str, type] = {"bool": bool, "int": int, "str": str, "frozenset[str]": Set, "Budget": Budget}
"""Types of protocols' attributes, by annotation."""


@functools.cache
def members(kind: str) -> Mapping[str, str]:
    """Return the members a kind's protocol asks for, sorted, each with its annotation or :data:`METHOD`."""
    found: dict[str, str] = {}
    for protocol in PROTOCOLS[kind].__mro__:
        found |= {name: METHOD for name in vars(protocol) if inspect.isfunction(vars(protocol)[name])}
        found |= vars(protocol).get("__annotations__", {})
    return {name: found[name] for name in sorted(found) if not name.startswith("_")}


def fault(kind: str, given: Any, also: str = "") -> str | None:
    """Return why ``given`` is no strategy of a kind, as part of a sentence; None where it is one.

    The object's methods are not called, so that wrong parameters of a method do not show here.

    Args:
        kind: a role of :data:`specframe.plugins.offers.ROLES`, or "observer".
        given: the object.
        also: what else could be given, as "a name or ".
    """
    asked = members(kind)
    expected = f"expected {also}an object with {', '.join(asked)}"
    if isinstance(given, type):
        return f"{expected}, got the class {given.__name__} and not an object of it"
    lacking = [name for name in asked if not hasattr(given, name)]
    if len(lacking) == len(asked):
        return f"{expected}, got {shown(given)}"
    if lacking:
        contract = f"{PROTOCOLS[kind].__module__}.{PROTOCOLS[kind].__name__}"
        return f"{expected}, got {type(given).__name__} without {', '.join(lacking)} (the contract is {contract})"
    wrong = (name for name in asked if not _is(asked[name], getattr(given, name)))
    if (name := next(wrong, None)) is not None:
        got = shown(getattr(given, name))
        return f"expected {name} of {type(given).__name__} to be of type {asked[name]}, got {got}"
    return None


def _is(annotation: str, value: Any) -> bool:
    return callable(value) if annotation == METHOD else isinstance(value, TYPES[annotation])


def require_members(kind: str, given: Any, called: str | None = None, also: str = "") -> None:
    """Raise :class:`OptionError` unless an object has the members that a kind's protocol asks for, of their types.

    Args:
        kind: a role of :data:`specframe.plugins.offers.ROLES`, or "observer".
        given: the object.
        called: what the message calls it; None: its kind.
        also: what else could be given, as "a name or ".
    """
    if why := fault(kind, given, also):
        raise OptionError(f"{called or kind}: {why}")
