"""Random inputs, reproducible by their seed, and the requirements on every refusal.

``SPECFRAME_FUZZ`` says how many inputs the tests draw in all, 100 where it is not set, and ``SPECFRAME_FUZZ_SEED`` from which seed.
"""

from __future__ import annotations

import os
import random
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

COUNT = int(os.environ.get("SPECFRAME_FUZZ", "100"))
"""Inputs in all."""
SEED = int(os.environ.get("SPECFRAME_FUZZ_SEED", "0"))

SHARES = {"command": 45, "prompts": 15, "argument": 35, "interruption": 5, "run": 40}
"""Of a hundred inputs, how many are of each kind; runs are counted by themselves."""

TEXTS: tuple[str, ...] = (
    *("", " ", "x", "nan", "NaN", "inf", "-inf", "1e999", "-1", "-0", "0", "1", "2", "0.5", "3.5", "1e3", "+1", "01"),
    *("9" * 5000, "-" + "9" * 5000, str(2**64), str(2**63), "1_0", "0x10", "١", "²", "1,5", " 1", "1\n", "0.1_0"),
    *(
        "true",
        "None",
        "[1]",
        "{}",
        ",",
        ",,",
        "1,,2",
        "a=b",
        "=",
        "x=",
        "name,key=value",
        "-",
        "--",
        "%s",
        "{0}",
        "$HOME",
    ),
    *("\\", "'", '"', "é", "🦊", "\u202e", "\udcff", "\x1b[31m", "\n", "a\nb", "a\0b", "\x7f", "auto", "none", "AUTO"),
    *("x" * 300, "x" * 5000, "🦊" * 200, "../x", "a b"),
)
"""Texts that are typed where something else is expected."""


_LOADED: dict[tuple[Any, ...], Any] = {}


def loaded(load: Callable[..., Any], *asked: Any) -> Any:
    """Return what was loaded before, or load it. Load options are a mapping."""
    key = (load, *(repr(one) if isinstance(one, Mapping) else one for one in asked))
    if key not in _LOADED:
        _LOADED[key] = load(*asked)
    return _LOADED[key]


def inputs(kind: str, fast: int | None = None) -> pytest.MarkDecorator:
    """Return a decorator that runs a test once for each input of a kind, with its ``number``; those from ``fast`` on are slow."""
    numbers = range(max(1, COUNT * SHARES[kind] // 100))
    slow = [] if fast is None else numbers[fast:]
    return pytest.mark.parametrize(
        "number", [pytest.param(one, marks=pytest.mark.slow) if one in slow else one for one in numbers]
    )


def drawn(kind: str, number: int) -> random.Random:
    """Return the random numbers of one input; no other input's are the same."""
    return random.Random(f"{SEED} {kind} {number}")


def some(draw: random.Random, choices: Sequence[Any], most: int, least: int = 0) -> list[Any]:
    """Return a few of the choices, none twice."""
    return draw.sample(choices, min(len(choices), draw.randint(least, most)))


def require_sentence(text: str, names: Sequence[str], given: Any) -> None:
    """Assert that a refusal is one line of readable length, without a traceback, that names one of the things refused.

    Args:
        text: what it says.
        names: what the thing is known by; dashes, underscores and blanks are the same.
        given: the input, for the message of a failure.
    """
    told = f"{text!r} of {reprlib.repr(given)}"
    assert text.strip(), f"nothing is said: {told}"
    assert "\n" not in text.strip("\n"), f"more than one line: {told}"
    assert "Traceback" not in text, told
    assert len(text) < 2000, f"too long to read: {told}"
    assert any(plain(name) in plain(text) for name in names), f"none of {list(names)} is named: {told}"


def plain(text: str) -> str:
    """Return a text in small letters, with one blank for dashes, underscores and blanks."""
    return re.sub(r"[-_\s]+", " ", text).lower()


Takes = Callable[[Any], bool | None]
"""Whether a value lies in a documented range; None where the documentation leaves that open."""


def whole(least: float, most: float = float("inf")) -> Takes:
    """Return whether a text is a whole number in a range."""

    def takes(text: str) -> bool | None:
        if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
            return False
        if len(text) > 4000:  # Python reads no more digits
            return None
        return least <= int(text) <= most

    return takes


def number(least: float = float("-inf"), most: float = float("inf"), above: bool = False) -> Takes:
    """Return whether a text is a finite number in a range, or above its least."""

    def takes(text: str) -> bool:
        if not re.fullmatch(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", text):
            return False
        value = float(text)
        return abs(value) < float("inf") and least <= value <= most and not (above and value == least)

    return takes


def word(*known: str) -> Takes:
    """Return whether a text is one of some words."""
    return lambda text: text in known
