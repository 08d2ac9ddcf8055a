"""Random moments of arrival, drawn as vLLM's ``bench serve`` draws them."""

from __future__ import annotations

import math

import attrs
import numpy as np

from specframe.errors import OptionError
from specframe.value_checks import number

LEAST_RATE = 1e-6
"""Fewest requests per second, one in eleven days: a clock that has run for much longer cannot resolve milliseconds."""
LEAST_BURSTINESS = 0.01
"""Smallest burstiness: of gaps drawn with less, all but a few are 0 in double precision."""

STRATEGIES = ("linear", "exponential")
"""How the rate of a ramp changes: by the same difference or by the same factor with every request."""


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
