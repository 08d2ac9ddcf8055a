"""When requests arrive: at random with a given rate, or as a file says."""

from __future__ import annotations

import math

import numpy as np

from specframe.engine.arrivals import checked_arrivals
from specframe.errors import OptionError
from specframe.files import contents, decoded
from specframe.values import read


def arrival_times(given: str, count: int, seed: int = 0) -> list[float]:
    """Return when each of ``count`` requests arrives, in seconds.

    Args:
        given: ``poisson:RATE``, requests per second on average, or a file with one number of seconds per line.
        count: how many requests there are.
        seed: of the random arrivals.

    Raises:
        OptionError: neither a rate above 0 nor a file of ``count`` numbers.
    """
    kind, colon, rate = given.partition(":")
    if kind == "poisson" and colon:
        return poisson(positive(rate), count, seed)
    return checked_arrivals(from_file(given), count, given)


def check(given: str) -> None:
    """Raise :class:`OptionError` unless ``given`` is a rate above 0, or a file of numbers, however many."""
    kind, colon, rate = given.partition(":")
    if kind == "poisson" and colon:
        positive(rate)
    else:
        checked_arrivals(found := from_file(given), len(found), given)


def poisson(rate: float, count: int, seed: int = 0) -> list[float]:
    """Return ``count`` moments of a Poisson process: the times between them are exponential with mean 1 / ``rate``."""
    return np.random.default_rng(seed).exponential(1 / rate, count).cumsum().tolist()


def positive(rate: str) -> float:
    """Return a rate; raise :class:`OptionError` unless the rate is a number above 0."""
    try:
        number = read(rate, float)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise OptionError(f"arrivals: expected a rate above 0 in requests per second, as in 'poisson:2', got {rate!r}")
    return number


def from_file(path: str) -> list[float]:
    """Return the numbers in a file, one per line, blank lines passed over."""
    try:
        lines = decoded(contents(path)).splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise OptionError(
            f"arrivals: expected poisson:RATE or a file of seconds, one number per line, and {path!r} cannot be read: "
            f"{reason}"
        ) from error
    numbers = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                numbers.append(read(line, float))
            except ValueError:
                raise OptionError(
                    f"arrivals: {path} line {number}: expected a number of seconds, got {line.strip()[:40]!r}"
                ) from None
    return numbers
