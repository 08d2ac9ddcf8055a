"""Least squares on logarithms, with intervals from the bootstrap."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

CONFIDENCE = 0.95
"""Share of the resamples that an interval holds."""
Interval = tuple[float, float]


@attrs.frozen(eq=False)
class Law:
    """y = c_1 log x_1 + ... + c_M log x_M + c_0, fitted to N points. Logarithms are natural."""

    names: tuple[str, ...]
    """Of the M quantities that y depends on."""
    x_NM: np.ndarray
    y_N: np.ndarray
    coefficients_C: np.ndarray
    """One for each quantity, then the constant: C = M + 1."""
    coefficients_RC: np.ndarray
    """The same, fitted to each of R resamples."""
    residuals_N: np.ndarray
    """Measured less fitted."""
    residuals_RN: np.ndarray

    @property
    def r2(self) -> float | None:
        """The share of the variance that is explained, or None if the law has as many coefficients as points, or y is constant."""
        spread = ((self.y_N - self.y_N.mean()) ** 2).sum()
        if len(self.y_N) <= len(self.coefficients_C) or not spread:
            return None
        return float(1 - (self.residuals_N**2).sum() / spread)

    @property
    def intervals(self) -> list[Interval]:
        """An interval for each coefficient."""
        return [interval(draws) for draws in self.coefficients_RC.T]

    @property
    def misses(self) -> list[bool]:
        """Whether the law passes each point by more than its prompts explain: no 0 in the residual's interval."""
        found = [interval(draws) for draws in self.residuals_RN.T]
        scale = 1e-9 * np.abs(self.y_N).max()  # a law through two points misses neither but for rounding
        return [bool(low > scale or high < -scale) for low, high in found]

    def at(self, *x: float) -> float:
        """Return y where the quantities have these values."""
        return float(np.dot(self.coefficients_C, design(np.array([x]))[0]))

    def draws_at(self, *x: float) -> np.ndarray:
        """Return y of every resample, (R,), where the quantities have these values."""
        return self.coefficients_RC @ design(np.array([x]))[0]


def design(x_NM: np.ndarray) -> np.ndarray:
    """Return what coefficients are multiplied with, (N, C): the logarithms, and 1."""
    return np.concatenate([np.log(x_NM), np.ones((len(x_NM), 1))], axis=1)


def fit(names: Sequence[str], x_NM: np.ndarray, y_N: np.ndarray, y_RN: np.ndarray) -> Law | None:
    """Return the law of least squares, or None if the points do not determine all coefficients.

    Args:
        names: of the quantities.
        x_NM: their values at N points, above 0.
        y_N: what is explained.
        y_RN: the same in each of R resamples.
    """
    terms_NC = design(x_NM)
    if len(terms_NC) < terms_NC.shape[1] or np.linalg.matrix_rank(terms_NC) < terms_NC.shape[1]:
        return None
    solve_CN = np.linalg.pinv(terms_NC)
    coefficients_C, coefficients_RC = solve_CN @ y_N, y_RN @ solve_CN.T
    return Law(
        tuple(names),
        x_NM,
        y_N,
        coefficients_C,
        coefficients_RC,
        y_N - terms_NC @ coefficients_C,
        y_RN - coefficients_RC @ terms_NC.T,
    )


def interval(draws_R: np.ndarray) -> Interval:
    """Return the bounds that hold the middle 95% of the resamples; draws that are no number are left out."""
    rest = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(draws_R, [rest, 100 - rest])
    return float(low), float(high)


def resample(count: int, resamples: int, seed: int) -> np.ndarray:
    """Return how often each of ``count`` things is in each resample, (R, count)."""
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
