"""When requests arrive, as ``--arrivals`` says: at random with a given rate, or as a file or a trace says."""

from __future__ import annotations

import math
from typing import Any

from specframe.engine.engine_clock import checked_arrivals
from specframe.errors import OptionError
from specframe.plugins.registry import parse_specification
from specframe.value_checks import read_number
from specframe_lab.serving.gaps import LEAST_RATE, Process
from specframe_lab.serving.traces import moments

PATTERNS = {"poisson": 1.0, "gamma": 1.0, "constant": math.inf}
"""The burstiness of each pattern; that of ``gamma`` can be chosen."""
RAMP = ("ramp_up_strategy", "ramp_up_end_rps")


def arrival_times(given: str, count: int, seed: int = 0) -> list[float]:
    """Return when each of ``count`` requests arrives, in seconds.

    Args:
        given: ``poisson:RATE``, ``gamma:RATE,burstiness=X`` or ``constant:RATE``, each also with a ramp, or a file: with one number
            of seconds per line, or a trace with a timestamp per line, of which the first ``count`` lines are taken.
        count: how many requests there are.
        seed: of the random arrivals.

    Raises:
        OptionError: neither a pattern of arrivals nor a file with a moment for each request.
    """
    if process := pattern(given):
        return process.moments(count, seed)
    found, trace = moments(given)
    return checked_arrivals(found[:count] if trace else found, count, given)


def check(given: str) -> None:
    """Raise :class:`OptionError` unless ``given`` is a pattern of arrivals, or a file of moments, however many."""
    if not pattern(given):
        found, _ = moments(given)
        checked_arrivals(found, len(found), given)


def pattern(given: str) -> Process | None:
    """Return the process that a text names, or None if the text names a file."""
    name, colon, _ = given.partition(":")
    if name not in PATTERNS or not colon:
        return None
    head, options = parse_specification(given)
    known = {"burstiness", *RAMP} if name == "gamma" else {*RAMP}
    if unknown := sorted(options.keys() - known):
        expected = ", ".join(key.replace("_", "-") for key in sorted(known))
        raise OptionError(f"arrivals: {name} has no option {unknown[0].replace('_', '-')!r}: expected {expected}")
    return Process(rate(head.partition(":")[2], name), **{"burstiness": PATTERNS[name], **options})


def poisson(rate: float, count: int, seed: int = 0) -> list[float]:
    """Return ``count`` moments of a Poisson process: the last is ``count`` / ``rate``."""
    return Process(rate).moments(count, seed)


def rate(text: str, name: str) -> float:
    """Return a rate; raise :class:`OptionError` unless the text is a number of at least :data:`LEAST_RATE`."""
    try:
        number: Any = read_number(text, float)
    except ValueError:
        number = math.nan
    if not LEAST_RATE <= number < math.inf:
        raise OptionError(
            f"arrivals: expected a rate of at least {LEAST_RATE:g} in requests per second, as in '{name}:2', got {text!r}"
        )
    return number
