"""Checks of arguments of the Python interface. The error names the argument, the accepted values and the given value."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from typing import Any

from specframe.errors import OptionError, UnknownNameError, literal
from specframe.plugins.protocols import require_members
from specframe.values import entries, number


def one_of(name: str, value: Any, known: Rows[str]) -> str:
    """Return ``value`` when it is one of ``known``; raise :class:`UnknownNameError` otherwise."""
    if not isinstance(value, str) or value not in known:
        raise UnknownNameError(f"value of {name}", value if isinstance(value, str) else literal(value), known)
    return value


def list_of(name: str, value: Any, expected: str) -> list[Any]:
    """Return what a list holds; raise :class:`OptionError` for what is none, texts and mappings among it."""
    held = None if isinstance(value, str | bytes | Mapping) else entries(value)
    if held is None:
        raise OptionError(f"{name}: expected {expected}, got {literal(value)}")
    return held


def observers(given: Any) -> list[Any]:
    """Return observers as a list; raise :class:`OptionError` for an object that is none."""
    watching = list_of("observers", given, "a list of observers")
    for place, one in enumerate(watching):
        require_members("observer", one, f"observers[{place}]")
    return watching


def seconds(given: Any) -> list[float]:
    """Return the moments at which prompts arrive; raise :class:`OptionError` for what is none."""
    return [number("arrivals", moment) for moment in list_of("arrivals", given, "a list of seconds")]


def tokenizer(given: Any) -> Any:
    """Return a tokenizer or None; raise :class:`OptionError` for an object that cannot encode and decode."""
    if given is not None and not (callable(given) and callable(getattr(given, "decode", None))):
        raise OptionError(
            f"tokenizer: expected a loaded tokenizer, which can be called and can decode, got {literal(given)}"
        )
    return given
