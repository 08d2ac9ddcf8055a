"""The seconds that a round takes and the tokens that it gains, by draft length, estimated from the rounds that were seen."""

from __future__ import annotations

from collections import deque

import attrs
import numpy as np

from specframe.contracts.reports import RoundReport

STEP = 0.3
"""Share of a plain round's time that each draft token adds, before anything is measured. It is rather too high: a draft that is
cheaper than assumed is lengthened at once, and one that is dearer has cost time already."""
RATE = 0.6
"""Probability that a draft token is accepted, given that those before it are, before anything is measured."""
BELIEF = 5
"""Draft tokens that have to reach a place before its own acceptance counts as much as that of all places together."""
NOISE = 0.15
"""Standard deviation of one round's seconds, as a share of them: that of rounds of 10 to 30 ms on a CPU with two cores."""
OTHER_SIZE = 0.06
"""Standard deviation of a linear model's error at another batch size, as a share of the seconds there."""
OWN = 0.05
"""Standard deviation of one draft length's departure from a straight line, as a share of its seconds: kernels have steps."""
SPREAD = (3.0, 0.3, 0.8, 0.3, 0.25)
"""Standard deviations of the linear model's five weights before anything is measured, as shares of a plain round's seconds: the
round itself, each draft token, drafting at all, a batch twice as large, a draft token of that batch."""
HALF = 800
"""Rounds after which a draft length that was not used since counts half: machines and prompts change."""
SURPRISE = 3.0
"""Ratio of a first round's seconds to the expected seconds above which another cause is assumed, and another round is timed."""
RECENT = 24
"""Rounds of one batch size and draft length whose median is taken: a single slow round does not move it."""


@attrs.define
class Measured:
    """The latest seconds of one batch size and draft length, and the number of the last such round."""

    seconds: deque[float]
    last: int

    @property
    def median(self) -> float:
        """The median of the seconds, the lesser of two in the middle."""
        return sorted(self.seconds)[(len(self.seconds) - 1) // 2]


class RoundSeconds:
    """Seconds of a round by batch size and draft length, as a Bayesian linear regression on the medians of what was measured.

    The model is linear in the draft length, in whether there is a draft, in the batch size, and in the product of batch size and
    draft length. Each draft length of the batch size asked about may depart from the line by a little. Relative errors count. Batch
    sizes near the one asked about weigh most. The first round of each pair is left out: it may allocate, compile or capture.
    """

    def __init__(self, maximum: int) -> None:
        self._lengths = np.arange(maximum + 1)
        self._measured: dict[tuple[int, int], Measured] = {}
        self._rounds = 0

    def add(self, rows: int, length: int, seconds: float, typical: bool = True) -> None:
        """Take in one round of ``rows`` rows and ``length`` draft tokens; a round that is not typical is not timed."""
        self._rounds += 1
        pair = rows, length
        if pair not in self._measured:
            self._measured[pair] = Measured(deque(maxlen=RECENT), self._rounds)
        elif typical:
            self._measured[pair].seconds.append(max(seconds, 1e-6))
            self._measured[pair].last = self._rounds

    def surprises(self, rows: int, length: int, seconds: float) -> bool:
        """Return whether the first seconds of a pair are :data:`SURPRISE` times those expected: another round has to tell."""
        known = self._measured.get((rows, length))
        return known is not None and not known.seconds and seconds > SURPRISE * float(self.estimate(rows)[0][length])

    @property
    def longest(self) -> int:
        """The longest draft so far, with any number of rows."""
        return max((length for _, length in self._measured), default=0)

    def estimate(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of a round of ``rows`` rows by draft length, and their standard deviations, both (maximum + 1,).

        Before anything was measured the unit is arbitrary.
        """
        timed = {pair: one for pair, one in self._measured.items() if one.seconds}
        guess_K = 1 + STEP * self._lengths
        if not timed:
            return guess_K, NOISE * guess_K
        sizes_P, lengths_P = np.array([*timed]).T
        seconds_P = np.array([one.median for one in timed.values()])
        ages_P = np.array([self._rounds - one.last for one in timed.values()])
        near_P = np.minimum(sizes_P / rows, rows / sizes_P) ** 2
        rounds_P = np.array([len(one.seconds) for one in timed.values()]) * 0.5 ** (ages_P / HALF) * near_P
        plain = float(rounds_P @ (seconds_P / (1 + STEP * lengths_P)) / rounds_P.sum())

        features_PF = self._features(lengths_P, sizes_P / rows - 1)
        features_PF[sizes_P != rows, len(SPREAD) :] = 0
        features_PF /= seconds_P[:, None]
        variance_P = NOISE**2 / rounds_P + np.where(sizes_P == rows, 0, OTHER_SIZE**2)
        prior_F = np.zeros(features_PF.shape[1])
        prior_F[:2] = plain, plain * STEP
        spread_F = plain * np.concatenate([SPREAD, OWN * guess_K])
        weighted_FP = features_PF.T / variance_P
        covariance_FF = np.linalg.inv(weighted_FP @ features_PF + np.diag(spread_F**-2.0))
        found_F = prior_F + covariance_FF @ (weighted_FP @ (1 - features_PF @ prior_F))

        asked_KF = self._features(self._lengths, np.zeros(len(self._lengths)))
        variance_K = ((asked_KF @ covariance_FF) * asked_KF).sum(1)
        return np.maximum(asked_KF @ found_F, 0.3 * seconds_P.min()), np.sqrt(np.maximum(variance_K, 0))

    def _features(self, lengths_P: np.ndarray, beyond_P: np.ndarray) -> np.ndarray:
        """Return the features of draft lengths at batch sizes that are larger by the share ``beyond_P``, (P, 5 + maximum + 1)."""
        own_PK = lengths_P[:, None] == self._lengths
        line_P5 = (np.ones(len(lengths_P)), lengths_P, lengths_P > 0, beyond_P, beyond_P * lengths_P)
        return np.column_stack([*line_P5, own_PK]).astype(float)


class Acceptance:
    """The probability of each draft token to be accepted, given that all before it are, and how near their ends rows are.

    Counts fade with the rows seen, to half after ``window`` rows, in rounds without a draft too. A place that few drafts reached is
    taken to be like all places together, and these to have the probability :data:`RATE` before anything is measured.
    """

    def __init__(self, maximum: int, window: int = 512) -> None:
        self._maximum, self._window = maximum, window
        self._reached_K, self._accepted_K = np.zeros(maximum), np.zeros(maximum)
        self._usable = np.zeros(maximum + 1)
        """Rows that could use so many draft tokens, or more than ``maximum``, by that number."""

    def add(self, report: RoundReport) -> None:
        """Take in the accepted tokens of a round. Where a row ended, what came after its end says nothing."""
        kept = 0.5 ** (len(report.sequences) / self._window)
        for counts in (self._reached_K, self._accepted_K, self._usable):
            counts *= kept
        for sequence, length, accepted, drafted in zip(
            report.sequences, report.lengths.tolist(), report.accepted.tolist(), report.drafted.tolist(), strict=True
        ):
            most = min(drafted, self._maximum)
            room = sequence.limit - length - 1
            self._usable[min(room, self._maximum)] += 1
            self._reached_K[: min(accepted, most)] += 1
            self._accepted_K[: min(accepted, most)] += 1
            if not sequence.finished and accepted < min(most, room):
                self._reached_K[accepted] += 1

    def gains(self, hope: float = 0.0) -> np.ndarray:
        """Return the tokens a row gains in a round by draft length, the bonus token included, (maximum + 1,).

        A row gains no more than it has to come: a draft length counts for what the rows seen could use of it.

        Args:
            hope: standard deviations by which each probability is taken to be higher than estimated.
        """
        usual = (self._accepted_K.sum() + BELIEF * RATE) / (self._reached_K.sum() + BELIEF)
        standing, gains = 1.0, [1.0]
        for reached, accepted in zip(self._reached_K.tolist(), self._accepted_K.tolist(), strict=True):
            rate = (accepted + BELIEF * usual) / (reached + BELIEF)
            standing *= min(1.0, rate + hope * (rate * (1 - rate) / (reached + BELIEF)) ** 0.5)
            gains.append(gains[-1] + standing)
        usable = np.minimum.outer(np.arange(len(gains)), np.arange(len(gains)))
        weights = self._usable + np.eye(len(gains))[-1]
        return np.array(gains)[usable] @ (weights / weights.sum())
