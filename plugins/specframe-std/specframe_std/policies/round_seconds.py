"""The seconds that a round takes, by its rows, the depth of its draft and the tokens that the target computes.

Tensor names carry their shape: P groups of rounds, F features, C rounds that are asked about.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from typing import TYPE_CHECKING

import attrs
import numpy as np
from torch import nn

from specframe_std.policies.levels import Levels
from specframe_std.policies.pace import APART, Pace

if TYPE_CHECKING:
    from specframe.model.run import Run

NOISE = 0.13
"""Standard deviation of one round's seconds, as a share of them: of rounds of 40 to 130 ms on a CPU 0.04 to 0.06 where nothing else
runs, and more together with other programs. Where it is taken to be too large, a step in the costs of depths is found late."""
OTHER_SIZE = 0.06
"""Standard deviation of a linear model's error at another batch size, as a share of the seconds there."""
OWN = 0.05
"""Standard deviation of one depth's departure from a straight line, as a share of its seconds: kernels have steps."""
SPREAD = (3.0, 0.21, 0.21, 0.8, 0.3, 0.25)
"""Standard deviations of the linear model's weights before anything is measured, as shares of a plain round's seconds: the round
itself, each step of a draft, each row's token of it that the target computes, drafting at all, a batch twice as large, a token of
that batch."""
HALF = 800
"""Rounds after which a depth that was not used since counts half: machines and prompts change."""
LONG_AGO = 100
"""Times of :data:`HALF` that count, at most: after a thousand a share would be 0, which nothing can be divided by."""
SURPRISE = 3.0
"""Ratio of a first round's seconds to the expected seconds above which another cause is assumed, and another round is timed."""
RECENT = 24
"""Rounds of one batch size and depth whose median is taken: a single slow round does not move it."""
LEAST = 1e-6
"""The seconds of a round are taken to be no fewer: clocks have steps."""
FREE = 0.1
"""Share of a target's pass that a draft step takes where there is no draft model, before anything is measured: a head's."""
TOKEN = 0.15
"""Share of a plain round that a step of a draft takes, and a token of every row that the target computes, where shapes are not
known. It is rather too high: a draft that is cheaper than assumed is lengthened at once, a dearer one has cost time already."""


@attrs.frozen
class Speed:
    """Rough speeds of a kind of device: they give shares of a round by shapes, not seconds."""

    bandwidth: float
    """Bytes of weights read per second."""
    operations: float
    """Multiplications and additions per second."""
    layer: float
    """Seconds to begin the kernels of one layer."""


CPU, ACCELERATOR = Speed(2e10, 1e11, 1e-4), Speed(3e12, 3e14, 1.7e-4)
"""A CPU with a few cores, where a layer has about ten operations of 10 microseconds; an H100, where it has some sixty kernels. A
step of a draft with 28 layers took 0.47 of a plain round of a target with 36 there (benchmarks/README.md); by these it is 0.46."""


@attrs.frozen
class Prior:
    """A round's cost by the models' shapes, before any round is timed."""

    step: float = TOKEN
    """Seconds of one step of a draft, as a share of a plain round's."""
    each: float | None = None
    """Seconds of each token that the target computes, as a share of its pass over the weights, or None if nothing is known."""
    read: float = 0.0
    """Seconds of each token that a draft model reads to catch up, as a share of that pass, or 0 without a draft model."""

    @classmethod
    def of(cls, run: Run) -> Prior:
        """Return the costs by the shapes of a run's models."""
        speed = CPU if run.runner.device.type == "cpu" else ACCELERATOR
        target = pass_seconds(run.runner.module, speed)
        each = weights(run.runner.module)[0] * 2 / speed.operations / target
        if run.draft_model is None:
            return cls(FREE, each)
        read = weights(run.draft_model)[0] * 2 / speed.operations / target
        return cls(pass_seconds(run.draft_model, speed) / target, each, read)

    def token(self, rows: int) -> float:
        """Return the seconds of one more token of every row that the target computes, as a share of a plain round's."""
        return TOKEN if self.each is None else rows * self.each / (1 + rows * self.each)

    def weight_pass(self, rows: int) -> float:
        """Return the seconds of the target's pass over its weights, as a share of a plain round of ``rows`` rows."""
        return 1 / (1 + rows * (self.each or 0.0))


def pass_seconds(module: nn.Module, speed: Speed) -> float:
    """Return the seconds of a model's pass over its weights."""
    _, size = weights(module)
    layers = getattr(getattr(module, "config", None), "num_hidden_layers", 1)
    return size / speed.bandwidth + max(1, int(layers)) * speed.layer


def weights(module: nn.Module) -> tuple[int, int]:
    """Return the number of a model's weights that each token passes, and their bytes: embeddings are only looked up."""
    looked_up = {id(one.weight) for one in module.modules() if isinstance(one, nn.Embedding)}
    looked_up -= {id(one.weight) for one in module.modules() if isinstance(one, nn.Linear)}  # a head's, tied to them
    passed = [one for one in module.parameters() if id(one) not in looked_up]
    return sum(one.numel() for one in passed), sum(one.numel() * one.element_size() for one in passed)


@attrs.define
class Measured:
    """The latest rounds of one batch size and depth."""

    last: int
    """The number of the last such round."""
    seconds: deque[float] = attrs.Factory(lambda: deque(maxlen=RECENT))
    tokens: deque[float] = attrs.Factory(lambda: deque(maxlen=RECENT))
    """Tokens of the drafts that the target computed, for each row."""
    fresh: int = 0
    """Rounds since the machine's pace was learnt of last."""
    _alike: tuple[float, float] | None = None
    """What is usual where all rounds have as many tokens."""

    def add(self, seconds: float, tokens: float, number: int) -> None:
        """Take a round."""
        self.seconds.append(seconds)
        self.tokens.append(tokens)
        self.fresh += 1
        self.last, self._alike = number, None

    def usual(self, slope: float) -> tuple[float, float]:
        """Return the median of the seconds, the lesser of two in the middle, and the mean of the tokens, which it is of.

        Args:
            slope: seconds of one more token of every row.
        """
        if self._alike is None:
            found = self._usual(slope)
            if len(set(self.tokens)) > 1:
                return found
            self._alike = found
        return self._alike

    def _usual(self, slope: float) -> tuple[float, float]:
        """Return the same, anew."""
        mean = sum(self.tokens) / len(self.tokens)
        alike = sorted(
            max(seconds - slope * (tokens - mean), 0.5 * seconds)
            for seconds, tokens in zip(self.seconds, self.tokens, strict=True)
        )
        return alike[(len(alike) - 1) // 2], mean


@attrs.frozen(eq=False, slots=False)
class Curve:
    """The seconds of rounds of one batch size.

    The weights are of 1, the depth, the tokens of every row, drafting at all, and each depth by itself.
    """

    mean_F: np.ndarray
    covariance_FF: np.ndarray
    least: float
    """The seconds of no round are taken to be fewer."""

    def seconds(self, depths_C: np.ndarray, tokens_C: np.ndarray) -> np.ndarray:
        """Return the seconds of rounds, of any shape.

        Args:
            depths_C: of their drafts.
            tokens_C: tokens of the drafts that the target computes, for each row.
        """
        return np.maximum(self._drafts_K[depths_C] + self.mean_F[2] * tokens_C, self.least)

    @functools.cached_property
    def _drafts_K(self) -> np.ndarray:
        """The seconds of rounds by their depth, without those of further tokens that the target computes."""
        depths_K = np.arange(len(self.mean_F) - 4)
        return self.mean_F[4:] + self.mean_F[0] + self.mean_F[1] * depths_K + self.mean_F[3] * (depths_K > 0)

    def deviations(self, depths_C: np.ndarray, tokens_C: np.ndarray) -> np.ndarray:
        """Return the standard deviations of the seconds, (C,)."""
        features_CF = np.zeros((len(depths_C), len(self.mean_F)))
        features_CF[:, 0], features_CF[:, 1], features_CF[:, 2] = 1, depths_C, tokens_C
        features_CF[:, 3] = depths_C > 0
        features_CF[np.arange(len(depths_C)), 4 + depths_C] = 1
        variance_C = ((features_CF @ self.covariance_FF) * features_CF).sum(1)
        return np.sqrt(np.maximum(variance_C, 0))

    @property
    def plain(self) -> float:
        """The seconds of a round without a draft."""
        return max(float(self.mean_F[0] + self.mean_F[4]), self.least)

    @property
    def token(self) -> float:
        """The seconds of one more token of every row that the target computes."""
        return max(float(self.mean_F[2]), 0.0)

    @property
    def step(self) -> float:
        """The seconds of one more step of a draft."""
        return max(float(self.mean_F[1]), 0.0)


class RoundSeconds:
    """Seconds of a round by batch size, depth and tokens, as a Bayesian linear regression on the medians of what was measured.

    The model is linear in the depth, in the tokens of the drafts that the target computes, in whether there is a draft, in the
    batch size, and in the product of batch size and tokens. Each depth of the batch size asked about may depart from the line by
    a little. Relative errors count. Batch sizes near the one asked about weigh most. No median is taken to be surer than the pace
    of the machine (:mod:`specframe_std.policies.pace`). Before anything is measured the models' shapes give what a step and a token
    cost in plain rounds. The first round of each pair is left out: it may allocate, compile or capture.

    Args:
        levels: of the drafts.
    """

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self.prior = Prior()
        """The costs by the models' shapes."""
        self._measured: dict[tuple[int, int], Measured] = {}
        self._pace = Pace()
        self._rounds = 0

    def add(self, rows: int, depth: int, tokens: int, seconds: float, typical: bool = True) -> None:
        """Take in one round.

        Args:
            rows: of the round.
            depth: of its draft.
            tokens: tokens that the target computed.
            seconds: of the round.
            typical: whether it is timed.
        """
        self._rounds += 1
        pair = rows, depth
        if pair not in self._measured:
            self._measured[pair] = Measured(self._rounds)
        elif typical:
            self._measured[pair].add(max(seconds, LEAST), tokens / rows - 1, self._rounds)

    def skip(self) -> None:
        """Count a round that is not timed."""
        self._rounds += 1

    def surprises(self, rows: int, depth: int, seconds: float) -> bool:
        """Return whether the first seconds of a pair are :data:`SURPRISE` times those expected: another round has to decide."""
        known = self._measured.get((rows, depth))
        if known is None or known.seconds:
            return False
        return seconds > SURPRISE * float(self.curve(rows).seconds(np.array(depth), self._levels.nodes_D[depth]))

    @property
    def longest(self) -> int:
        """The greatest depth so far, with any number of rows."""
        return max((depth for _, depth in self._measured), default=0)

    def curve(self, rows: int) -> Curve:
        """Return the seconds of rounds of ``rows`` rows; before anything was measured the unit is arbitrary."""
        timed = {pair: one for pair, one in self._measured.items() if one.seconds}
        step, token = self.prior.step, self.prior.token(rows)
        guesses = [1 + step * depth + token * nodes for depth, nodes in enumerate(self._levels.nodes_D.tolist())]
        self._learn_pace(timed)
        if not timed:
            variances = [NOISE**2, 0.0, 0.0, 0.0, *((NOISE * (guess - 1)) ** 2 for guess in guesses)]
            return Curve(np.array([1.0, step, token, 0.0, *[0.0] * len(guesses)]), np.diag(variances), 0.0)
        chances = [self._chance(one, size / rows) for (size, _), one in timed.items()]
        plain = self._plain(timed, chances, token)
        evidence, expected, least = list[list[float]](), list[float](), math.inf
        for ((size, depth), one), chance in zip(timed.items(), chances, strict=True):
            seconds, tokens = one.usual(plain * token)
            sure = (chance if size == rows else chance + OTHER_SIZE**2) ** -0.5
            unit, beyond = sure * plain / seconds, size / rows - 1
            own = [0.0] * len(guesses)
            own[depth] = unit * (size == rows)
            line = [unit, unit * depth, unit * tokens, unit * (depth > 0)]
            evidence.append([*line, *own, unit * beyond, unit * beyond * tokens])
            expected.append(sure)
            least = min(least, seconds)
        spreads = [*SPREAD[:4], *(OWN * guess for guess in guesses), *SPREAD[4:]]
        prior_F = np.array([1.0, step, token, *[0.0] * (len(spreads) - 3)])
        features_PF = np.array(evidence)
        precision_FF = features_PF.T @ features_PF
        precision_FF.flat[:: len(spreads) + 1] += [spread**-2 for spread in spreads]
        covariance_FF = np.linalg.inv(precision_FF)
        found_F = prior_F + covariance_FF @ (features_PF.T @ (np.array(expected) - features_PF @ prior_F))
        return Curve(plain * found_F[:-2], plain**2 * covariance_FF[:-2, :-2], 0.3 * least)

    def _chance(self, one: Measured, ratio: float) -> float:
        """Return the variance by chance of a median for a batch size, as a share of it; it has ``ratio`` times the rows."""
        near = min(ratio, 1 / ratio) ** 2
        faded = 0.5 ** min((self._rounds - one.last) / HALF, LONG_AGO)
        return NOISE**2 / (len(one.seconds) * faded * near) + self._pace.variance

    def _plain(self, timed: dict[tuple[int, int], Measured], chances: list[float], token: float) -> float:
        """Return the seconds of a plain round, by all that was measured and the models' shapes."""
        sum_, weight = 0.0, 0.0
        for ((_, depth), one), chance in zip(timed.items(), chances, strict=True):
            seconds, tokens = one.usual(0.0)
            sum_ += seconds / (1 + self.prior.step * depth + token * tokens) / chance
            weight += 1 / chance
        return sum_ / weight

    def _learn_pace(self, timed: dict[tuple[int, int], Measured]) -> None:
        """Learn of the machine's pace by the rounds since it was asked last: all at once, as a round finds caches full of models.

        What more tokens take is left out, by the models' shapes.
        """
        for (rows, depth), one in timed.items():
            if one.fresh and len(one.seconds) > APART:
                line, token = 1 + self.prior.step * depth, self.prior.token(rows)
                first = max(len(one.seconds) - one.fresh, APART)
                oldest, before, *latest = (
                    one.seconds[place] / (line + token * one.tokens[place])
                    for place in (0, *range(first - 1, len(one.seconds)))
                )
                for this in latest:
                    self._pace.add(this / oldest, this / before)
                    before = this
                one.fresh = 0
