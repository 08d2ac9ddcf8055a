"""When requests arrive, as ``--arrivals`` says: at random as vLLM's ``bench serve`` draws it, or as a file says.

A file has a number of seconds per line, or is a trace in Mooncake's format.
"""

from __future__ import annotations

import json
import math
from typing import Any

import attrs
import numpy as np

from specframe.engine.engine_clock import checked_arrivals
from specframe.errors import OptionError
from specframe.files import contents, decode_text
from specframe.plugins.registry import parse_specification
from specframe.value_checks import number, number_within, read_number

LEAST_RATE = 1e-6
"""Fewest requests per second, one in eleven days: a clock that has run for much longer cannot resolve milliseconds."""
LEAST_BURSTINESS = 0.01
"""Smallest burstiness: of gaps drawn with less, all but a few are 0 in double precision."""

STRATEGIES = ("linear", "exponential")
"""How the rate of a ramp changes: by the same difference or by the same factor with every request."""
MEANT = "expected poisson:RATE, gamma:RATE, constant:RATE or a file of seconds, one number per line, or of a trace"
MILLISECONDS = 1000
"""Of a second: the timestamps of traces are in milliseconds."""
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
    found, trace = moments_in(given)
    return checked_arrivals(found[:count] if trace else found, count, given)


def check(given: str) -> None:
    """Raise :class:`OptionError` unless ``given`` is a pattern of arrivals, or a file of moments, however many."""
    if not pattern(given):
        found, _ = moments_in(given)
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


def rate(text: str, name: str) -> float:
    """Return a rate; raise :class:`OptionError` unless the text is a number of at least :data:`LEAST_RATE`."""
    try:
        found: Any = read_number(text, float)
    except ValueError:
        found = math.nan
    if not LEAST_RATE <= found < math.inf:
        raise OptionError(
            f"arrivals: expected a rate of at least {LEAST_RATE:g} in requests per second, as in '{name}:2', got {text!r}"
        )
    return found


@attrs.frozen
class Process:
    """A random process of arrivals.

    Args:
        rate: requests per second, on average; with a ramp those at its start.
        burstiness: shape of the gamma distribution that gaps are drawn from, with mean 1 / rate: 1 gives a Poisson process, less
            gives bursts, more gives evener gaps, and infinity equal ones.
        ramp_up_strategy: how the rate gets from ``rate`` to ``ramp_up_end_rps``, request by request, or None if it stays.
        ramp_up_end_rps: requests per second at the end of the ramp.

    Raises:
        OptionError: a number out of its range, or half a ramp.
    """

    rate: float
    burstiness: float = 1.0
    ramp_up_strategy: str | None = None
    ramp_up_end_rps: float | None = None

    def __attrs_post_init__(self) -> None:
        number("arrivals: rate", self.rate, LEAST_RATE)
        if self.burstiness != math.inf:
            number("arrivals: burstiness", self.burstiness, LEAST_BURSTINESS)
        if self.ramp_up_strategy not in (None, *STRATEGIES):
            raise OptionError(
                f"arrivals: ramp-up-strategy: expected {' or '.join(STRATEGIES)}, got {self.ramp_up_strategy!r}"
            )
        if (self.ramp_up_strategy is None) != (self.ramp_up_end_rps is None):
            raise OptionError(
                "arrivals: expected ramp-up-strategy and ramp-up-end-rps together, got one of them: "
                "the rate goes from RATE to ramp-up-end-rps"
            )
        if self.ramp_up_end_rps is not None:
            number("arrivals: ramp-up-end-rps", self.ramp_up_end_rps, LEAST_RATE)

    def moments(self, count: int, seed: int = 0) -> list[float]:
        """Return when each of ``count`` requests arrives, in seconds.

        Without a ramp the moments are stretched so that the last is ``count`` / ``rate``: the rate is the one asked for, and not
        that of one draw.
        """
        rates = self.rates(count)
        gaps = 1 / rates if self.burstiness == math.inf else self._drawn(rates, seed)
        moments = gaps.cumsum()
        if self.ramp_up_strategy is None and count and moments[-1]:
            moments = moments / moments[-1] * (count / self.rate)
        return moments.tolist()

    def rates(self, count: int) -> np.ndarray:
        """Return the rate before each request, (count,)."""
        progress = np.arange(count) / max(count - 1, 1)
        start, end = self.rate, self.ramp_up_end_rps or self.rate
        if self.ramp_up_strategy == "linear":
            return start + (end - start) * progress
        return start * (end / start) ** progress

    def _drawn(self, rates: np.ndarray, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).gamma(self.burstiness, 1 / (rates * self.burstiness))


def moments_in(path: str) -> tuple[list[float], bool]:
    """Return the moments in a file, in seconds, and whether the file is a trace.

    Raises:
        OptionError: the file cannot be read, or has a line that is neither a number nor of a trace.
    """
    lines = [(place, line) for place, line in enumerate(text_of(path).splitlines(), start=1) if line.strip()]
    trace = bool(lines) and lines[0][1].lstrip().startswith("{")
    found = [(timestamp if trace else seconds)(line, f"{path} line {place}") for place, line in lines]
    return (from_start(found), True) if trace else (found, False)


def text_of(path: str) -> str:
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
