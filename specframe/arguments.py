"""Checks of arguments of the Python interface. The error names the argument, the accepted values and the given value."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from typing import Any

from specframe.errors import OptionError, UnknownNameError, shown
from specframe.plugins.members import require_members
from specframe.values import entries, number


def one_of(name: str, value: Any, known: Rows[str]) -> str:
    """Return ``value`` when it is one of ``known``; raise :class:`UnknownNameError` otherwise."""
    if not isinstance(value, str) or value not in known:
        raise UnknownNameError(f"value of {name}", value if isinstance(value, str) else shown(value), known)
    return value


def listed(name: str, value: Any, expected: str) -> list[Any]:
    """Return the entries of a list; raise :class:`OptionError` for anything else, also for texts and mappings."""
    held = None if isinstance(value, str | bytes | Mapping) else entries(value)
    if held is None:
        raise OptionError(f"{name}: expected {expected}, got {shown(value)}")
    return held


def observers(given: Any) -> list[Any]:
    """Return observers as a list; raise :class:`OptionError` for an object that is no observer."""
    watching = listed("observers", given, "a list of observers")
    for place, one in enumerate(watching):
        require_members("observer", one, f"observers[{place}]")
    return watching


def seconds(given: Any) -> list[float]:
    """Return the arrival times of prompts in seconds; raise :class:`OptionError` for anything but a list of numbers."""
    return [number("arrivals", moment) for moment in listed("arrivals", given, "a list of seconds")]


def tokenizer(given: Any) -> Any:
    """Return a tokenizer or None; raise :class:`OptionError` for an object that cannot encode and decode."""
    if given is not None and not (callable(given) and callable(getattr(given, "decode", None))):
        raise OptionError(
            f"tokenizer: expected a loaded tokenizer, which can be called and can decode, got {shown(given)}"
        )
    return given
