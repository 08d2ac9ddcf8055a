"""Checks of arguments of the Python interface. The error names the argument, the accepted values and the given value."""

from __future__ import annotations

from typing import Any

from specframe.errors import OptionError, literal
from specframe.plugins.protocols import require_members
from specframe.value_checks import list_of, number


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
