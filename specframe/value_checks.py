"""Checks of values, written once: the error names the value, the range expected and the value got."""

from __future__ import annotations

import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specframe.errors import OptionError, UnknownNameError, literal

LARGEST_SEED = 2**64 - 1
"""Largest seed: that of torch.manual_seed. Random numbers are hashes of 64 bits."""

MOST_SAMPLES = 10_000
"""Most continuations of one prompt. Each takes host memory from the start, and a typing error must not fill the memory."""

KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
"""Types of options, with their names in error messages."""


def whole(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> int:
    """Return a whole number from ``least`` to ``most``, both included.

    Raises:
        OptionError: ``value`` is no such number; true and false are not numbers.
    """
    if not whole_within(value, least, most):
        raise OptionError(f"{name}: expected a whole number{bound(least, most)}, got {literal(value)}")
    return value


def number(name: str, value: Any, least: float = -math.inf, most: float = math.inf, above: bool = False) -> float:
    """Return a finite number from ``least`` to ``most``, both included, or greater than ``least`` when ``above``.

    Raises:
        OptionError: ``value`` is no such number; true, false and nan are not accepted.
    """
    if not number_within(value, least, most, above):
        raise OptionError(f"{name}: expected {a_number(value, least, most, above)}, got {literal(value)}")
    return float(value)


def whole_within(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Return whether a value is a whole number from ``least`` to ``most``, both included; true and false are none."""
    return of_type(value, int) and least <= value <= most


def number_within(value: Any, least: float = -math.inf, most: float = math.inf, above: bool = False) -> bool:
    """Return whether a value is a finite number from ``least`` to ``most``, or greater than ``least`` when ``above``."""
    finite = of_type(value, float) and abs(value) <= sys.float_info.max
    return finite and least <= value <= most and not (above and value == least)


def flag(name: str, value: Any) -> bool:
    """Return true or false; raise :class:`OptionError` for anything else."""
    if not of_type(value, bool):
        raise OptionError(f"{name}: expected true or false, got {literal(value)}")
    return value


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """Return ``value`` when it is one of ``known``; raise :class:`UnknownNameError` otherwise."""
    if not isinstance(value, str) or value not in known:
        raise UnknownNameError(f"value of {name}", value if isinstance(value, str) else literal(value), known)
    return value


def read_number(text: str, kind: type[int] | type[float]) -> float:
    """Return the number written in a text; raise :class:`ValueError` unless the text is in ASCII digits.

    Python's own conversion would also accept ``1_0`` and the digits of other scripts.
    """
    if not text.isascii() or "_" in text:
        raise ValueError(f"expected a number in decimal digits, got {text!r}")
    return kind(text)


def parse_value(text: str) -> bool | int | float | str:
    """Read an option's value: true/false, a number, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return read_number(text, kind)
        except ValueError:
            continue
    return text


def entries(value: Any) -> list[Any] | None:
    """Return the entries of an iterable as a list, or None for an object that is not iterable, such as a 0-dimensional array."""
    try:
        return list(value)
    except TypeError:
        return None


def list_of(name: str, value: Any, expected: str) -> list[Any]:
    """Return what a list holds; raise :class:`OptionError` for what is none, texts and mappings among it."""
    held = None if isinstance(value, str | bytes | Mapping) else entries(value)
    if held is None:
        raise OptionError(f"{name}: expected {expected}, got {literal(value)}")
    return held


def bound(least: float, most: float, above: bool = False) -> str:
    """Return a range in words, to follow the word "number"; infinite bounds are left out."""
    if above:
        return f" above {least:,}" + ("" if math.isinf(most) else f" and at most {most:,}")
    if math.isinf(most):
        return "" if math.isinf(least) else f" of at least {least:,}"
    return f" from {least:,} to {most:,}"


def a_number(value: Any, least: float, most: float, above: bool = False) -> str:
    """Return the words for a number in a range; for an infinite ``value``, which may lie in it, the word "finite" is among them."""
    infinite = of_type(value, float) and abs(value) > sys.float_info.max
    return f"a {'finite ' * infinite}number{bound(least, most, above)}"


def of_type(value: Any, kind: type) -> bool:
    """Return whether a value is valid for a type: a whole number is valid for float, and true is not a number."""
    if kind is float:
        # nan differs from itself
        return isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def check_annotated(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Check keyword arguments against the types that a function's parameters are annotated with.

    Only annotations made of ``bool``, ``int``, ``float``, ``str`` and ``None`` are checked: strategies annotate options with these.
    The function itself has to check ranges.

    Raises:
        OptionError: an argument has another type or is nan.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters if given else {}
    except Exception:  # an annotation may name something imported only for type checkers
        return
    for name in (one for one in parameters if one in given):
        asked = parameters[name].annotation
        kinds = typing.get_args(asked) if isinstance(asked, types.UnionType) else (asked,)
        if {*kinds} <= {*KINDS, types.NoneType} and not any(of_type(given[name], kind) for kind in kinds):
            words = " or ".join(KINDS[kind] for kind in kinds if kind in KINDS)
            raise OptionError(f"{name}: expected {words}, got {literal(given[name])}")


class Wrapper:
    """An object around another one, with all members of it that it has none of its own for.

    Names of the language, such as ``__deepcopy__``, are not looked up in the other object: a copy of a wrapper is a wrapper
    around a copy.
    """

    def __init__(self, inner: Any) -> None:
        self.__wrapped__ = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self.__wrapped__, name)


def unwrap_guards(strategy: Any) -> Any:
    """Return a strategy without the guards around it."""
    return inspect.unwrap(strategy)


UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def byte_count(name: str, given: Any) -> int:
    """Return an amount of memory in bytes.

    Raises:
        OptionError: it is no number of at least 1 with a unit of bytes, or without one.
    """
    text = given if isinstance(given, str) else str(given) if whole_within(given, 1, 10**15 - 1) else ""
    found = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*", text)
    unit = UNITS.get(found[2].upper()) if found else None
    if not found or unit is None or (count := int(float(found[1]) * unit)) < 1:
        raise OptionError(f"{name}: expected bytes as in 2GB, 512MB or 1.5GiB, got {literal(given)}")
    return count
