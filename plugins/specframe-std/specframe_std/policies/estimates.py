"""What a draft length costs and gains, estimated from the rounds that were seen."""

from __future__ import annotations

from collections import deque

import numpy as np

from specframe.types import RoundReport

STEP = 0.25
"""Before anything is measured: what a draft token adds to the time of a round that drafts none, as a share of it."""
RATE = 0.7
"""Before anything is measured: the probability that a draft token stands, given that those before it do."""


class RoundSeconds:
    """Seconds of a round by batch size and draft length.

    Every pair that was measured has the median of its latest rounds, which a stray slow round does not move. What was not
    measured follows from a linear model of all medians, in the batch size, the draft length, their product and whether there
    is a draft at all; batch sizes near the one in question weigh most, and little data leave it near :data:`STEP`.
    The first round of each pair is left out: it may allocate, compile or capture.
    """

    def __init__(self, maximum: int, recent: int = 9) -> None:
        self._maximum, self._recent, self._lengths = maximum, recent, np.arange(maximum + 1)
        self._measured: dict[tuple[int, int], deque[float]] = {}
        self._medians: dict[tuple[int, int], float] = {}

    def add(self, rows: int, length: int, seconds: float, typical: bool = True) -> None:
        """Take in one round of ``rows`` rows and ``length`` draft tokens, for nothing but its being first when not typical."""
        pair = rows, length
        if pair not in self._measured:
            self._measured[pair] = deque(maxlen=self._recent)
        elif typical:
            latest = self._measured[pair]
            latest.append(max(seconds, 1e-6))
            self._medians[pair] = sorted(latest)[(len(latest) - 1) // 2]

    def known(self, rows: int) -> np.ndarray:
        """Return which draft lengths were measured with so many rows, (maximum + 1,)."""
        return np.array([(rows, length) in self._medians for length in range(self._maximum + 1)])

    @property
    def longest(self) -> int:
        """The longest draft that was measured, with any number of rows."""
        return max((length for _, length in self._medians), default=0)

    def curve(self, rows: int) -> np.ndarray:
        """Return the seconds of a round of ``rows`` rows by draft length, (maximum + 1,).

        Before anything was measured the unit is arbitrary.
        """
        if not self._medians:
            return 1 + STEP * self._lengths
        curve = self._model(rows)
        for (size, length), seconds in self._medians.items():
            if size == rows and length <= self._maximum:
                weight = 2 * len(self._measured[size, length])
                curve[length] = (curve[length] + weight * seconds) / (1 + weight)
        return curve

    def _model(self, rows: int) -> np.ndarray:
        """Return the linear model's seconds by draft length, fitted around the batch size ``rows``.

        Ridge regression on relative errors, towards the shape 1 + STEP * K scaled to what was measured nearby.
        """
        pairs_P2 = np.array([*self._medians], dtype=float)
        sizes_P, lengths_P, seconds_P = pairs_P2[:, 0] / rows, pairs_P2[:, 1], np.array([*self._medians.values()])
        counts_P = np.array([len(self._measured[pair]) for pair in self._medians])
        weights_P = counts_P * np.minimum(sizes_P, 1 / sizes_P) ** 2
        scale = (weights_P @ (seconds_P / (1 + STEP * lengths_P))) / weights_P.sum()
        prior_F = scale * np.array([1, STEP, 0, 0, 0])
        features_PF = _features(sizes_P, lengths_P) / seconds_P[:, None]
        weighted_FP = features_PF.T * weights_P
        ridge_FF = np.diag(np.array([0.01, 0.5, 0.05, 0.5, 0.5]) / scale**2)
        found_F = np.linalg.solve(weighted_FP @ features_PF + ridge_FF, weighted_FP @ (1 - features_PF @ prior_F))
        curve = _features(np.ones(len(self._lengths)), self._lengths) @ (prior_F + found_F)
        return np.maximum(curve, 0.3 * seconds_P.min())


def _features(sizes_P: np.ndarray, lengths_P: np.ndarray) -> np.ndarray:
    """Return 1, K, whether K > 0, the relative batch size less one, and that times K, (P, 5)."""
    beyond_P = sizes_P - 1
    features_PF = np.empty((len(sizes_P), 5))
    for place, feature_P in enumerate((1, lengths_P, lengths_P > 0, beyond_P, beyond_P * lengths_P)):
        features_PF[:, place] = feature_P
    return features_PF


class Acceptance:
    """The probability of each draft token to stand, given that all before it do, and how near their ends rows are.

    Counts fade with the rows seen, to half after ``window`` rows. A place that few drafts reached is taken to be like the one
    before it.
    """

    def __init__(self, maximum: int, window: int = 512) -> None:
        self._maximum, self._window = maximum, window
        self._reached, self._stood = [0.0] * maximum, [0.0] * maximum
        self._useful = np.zeros(maximum + 1)
        """Rows that could use so many draft tokens, or more than ``maximum``, by that number."""

    def add(self, report: RoundReport) -> None:
        """Take in what stood of a draft. Where a row ended, what came after its end says nothing."""
        kept = 0.5 ** (len(report.sequences) / self._window)
        reached, stood = [kept * count for count in self._reached], [kept * count for count in self._stood]
        useful = kept * self._useful
        most = min(report.draft.length, self._maximum)
        for sequence, length, accepted in zip(
            report.sequences, report.lengths.tolist(), report.accepted.tolist(), strict=True
        ):
            for place in range(min(accepted, most)):
                reached[place] += 1
                stood[place] += 1
            room = sequence.limit - length - 1
            useful[min(room, self._maximum)] += 1
            if not sequence.finished and accepted < min(most, room):
                reached[accepted] += 1
        self._reached, self._stood = reached, stood
        self._useful = useful

    def gains(self) -> np.ndarray:
        """Return the tokens a row gains in a round by draft length, the bonus token included, (maximum + 1,).

        A row gains no more than it has to come: a draft length counts for what the rows seen could use of it.
        """
        rate, standing, gains = RATE, 1.0, [1.0]
        for reached, stood in zip(self._reached, self._stood, strict=True):
            rate = (stood + 4 * rate) / (reached + 4)
            standing *= rate
            gains.append(gains[-1] + standing)
        usable = np.minimum.outer(np.arange(len(gains)), np.arange(len(gains)))
        weights = self._useful + np.eye(len(gains))[-1]
        return np.array(gains)[usable] @ (weights / weights.sum())
