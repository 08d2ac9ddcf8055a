"""Moments of arrival in files: a number of seconds per line, or a trace in Mooncake's format."""

from __future__ import annotations

import json
import math
from typing import Any

from specframe.errors import OptionError
from specframe.files import contents, decode_text
from specframe.value_checks import number_within, read_number

MEANT = "expected poisson:RATE, gamma:RATE, constant:RATE or a file of seconds, one number per line, or of a trace"
MILLISECONDS = 1000
"""Of a second: the timestamps of traces are in milliseconds."""


def moments(path: str) -> tuple[list[float], bool]:
    """Return the moments in a file, in seconds, and whether the file is a trace.

    Raises:
        OptionError: the file cannot be read, or has a line that is neither a number nor of a trace.
    """
    lines = [(number, line) for number, line in enumerate(text(path).splitlines(), start=1) if line.strip()]
    trace = bool(lines) and lines[0][1].lstrip().startswith("{")
    found = [(timestamp if trace else seconds)(line, f"{path} line {number}") for number, line in lines]
    return (from_start(found), True) if trace else (found, False)


def text(path: str) -> str:
    """Return the text of a file."""
    try:
        return decode_text(contents(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise OptionError(f"arrivals: {MEANT}, and {path!r} cannot be read: {reason}") from error


def seconds(line: str, place: str) -> float:
    """Return the number of seconds in a line."""
    try:
        return read_number(line, float)
    except ValueError:
        raise OptionError(f"arrivals: {place}: expected a number of seconds, got {line.strip()[:40]!r}") from None


def timestamp(line: str, place: str) -> float:
    """Return the moment of a line of a trace, in seconds."""
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    found: Any = entry.get("timestamp") if isinstance(entry, dict) else None
    if not number_within(found, 0, math.inf):
        raise OptionError(
            f"arrivals: {place}: expected an object with a timestamp in milliseconds, 0 or more, got {line.strip()[:40]!r}"
        )
    return found / MILLISECONDS


def from_start(found: list[float]) -> list[float]:
    """Return the moments of a trace counted from its first: a part cut from a trace starts at 0."""
    first = min(found)
    return [moment - first for moment in found]
