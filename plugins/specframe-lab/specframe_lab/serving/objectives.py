"""Objectives of service: how long a request may take, in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping

from specframe.errors import OptionError
from specframe.value_checks import read_number

NAMES = ("ttft", "tpot", "e2el")
"""The figures that can be objectives: each has one value per request."""
EXAMPLE = "ttft:200,tpot:50,e2el:3000"
MILLISECONDS = 1000

Objectives = Mapping[str, float]
"""Most milliseconds of each figure; a request is good when all hold."""


def objectives(given: str) -> dict[str, float]:
    """Return the objectives that a text such as ``ttft:200,tpot:50`` names.

    Raises:
        OptionError: an unknown name, one given twice, or a value that is no number above 0.
    """
    found: dict[str, float] = {}
    for part in given.split(","):
        name, colon, value = (piece.strip() for piece in part.partition(":"))
        if name not in NAMES or not colon:
            raise OptionError(
                f"expected {', '.join(NAMES)} with milliseconds, as in {EXAMPLE!r}, got {part.strip()[:40]!r}"
            )
        if name in found:
            raise OptionError(f"{name} is given twice: expected one value, got {given[:60]!r}")
        found[name] = milliseconds(name, value)
    return found


def milliseconds(name: str, value: str) -> float:
    """Return a number above 0."""
    try:
        number = read_number(value, float)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise OptionError(f"{name}: expected milliseconds, a number above 0, got {value[:40]!r}")
    return number


def holds(wanted: Objectives, figures: Mapping[str, float]) -> bool:
    """Return whether a request's figures, in seconds, keep all objectives. A figure that it has not (nan) keeps its objective."""
    return all(not figures[name] * MILLISECONDS > most for name, most in wanted.items())
