"""Rounds whose cost and acceptance are known, for draft-length policies."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import torch
from specframe_std.policies.goodput import Goodput

Cost = Callable[[int, float], float]
"""Seconds of a round by rows and draft length."""
ROUNDS = 300


def gain(rate: float, length: int) -> float:
    """Return the tokens a row gains in a round when each draft token is accepted with the probability ``rate``."""
    return 1 + sum(rate**place for place in range(1, length + 1))


@attrs.define(eq=False)
class Row:
    """A sequence that never comes near its end."""

    request: Any
    limit: int = 10**6
    finished: bool = False


class Rows(list[Row]):
    """A batch of such rows, on a CPU."""

    mixed, waiting = None, 0

    def __init__(self, count: int) -> None:
        super().__init__(Row(types.SimpleNamespace(key=(number, 0), prompt_ids=[0] * 10)) for number in range(count))
        self.sequences, self.lengths = list(self), np.full(count, 10)
        self.limits = np.full(count, 10**6)
        self.lengths_B = torch.full((count,), 10)


class World:
    """Rounds whose time and acceptance are known, with 5 percent of noise and one round in 300 held up five times as long.

    ``rate`` is a probability, one for each row, or one for each round. Taking up drafting costs 0.2 percent of a round for each
    token missed. ``pace``: the standard deviation of the machine's pace, which wanders from round to round. ``tight``: a row's
    time is that of its own draft, since padding is left out. ``recorded``: a round of a new length takes three times as long, and
    six times when it is recorded, at its second time.
    """

    def __init__(
        self,
        cost: Cost,
        rate: Any,
        rows: int,
        seed: int = 0,
        pace: float = 0.0,
        tight: bool = False,
        held_up: float = 1 / 300,
        recorded: bool = False,
    ) -> None:
        self.recorded = recorded
        self.cost, self.rows, self.seed, self.pace, self.tight, self.held_up = cost, rows, seed, pace, tight, held_up
        self.rate: Callable[[int], Any] = rate if callable(rate) else lambda number: rate

    def run(self, rounds: int = ROUNDS, policy: Any = None) -> Any:
        """Let a policy decide for ``rounds`` rounds and return it; note the draft lengths and their worth without the noise."""
        noise, self.now, missed, pace = np.random.default_rng(self.seed), 0.0, 0, 0.0
        policy = policy or Goodput()
        policy.clock = lambda: self.now
        met, new = Counter[int](), 0
        policy._new_shapes = lambda: new
        if self.tight:
            policy._leaves_out = lambda places, tokens: tokens < places
        rows = Rows(self.rows)
        self.said: list[int] = []
        self.lengths: list[list[int]] = []
        self.seconds: list[float] = []
        self.gains: list[float] = []
        for number in range(rounds):
            budget = policy.budget(rows)
            length = budget.depth
            own_B = np.full(self.rows, length) if budget.depths_B is None else budget.depths_B
            mean = float(own_B.mean()) if self.tight else length
            seconds = self.cost(self.rows, mean) + (0.002 * missed * self.cost(self.rows, 0) if length else 0)
            missed = 0 if length else missed + 1
            pace = 0.9 * pace + noise.normal(0, self.pace * (1 - 0.9**2) ** 0.5)
            held_up = 5 if noise.random() < self.held_up else 1
            if self.recorded and met[length] < 2:
                held_up *= (3, 6)[met[length]]
                met[length] += 1
                new += 1
            self.now += seconds * float(np.exp(pace + noise.normal(0, 0.05))) * held_up
            rate_B = np.broadcast_to(self.rate(number), (self.rows,))
            stood_B = (noise.random((self.rows, length)) < rate_B[:, None]).cumprod(1).sum(1)
            computed = self.rows + int(own_B.sum()) if self.tight else self.rows * (1 + length)
            policy.observe(round_report(np.minimum(stood_B, own_B), length, rows, own_B, computed))
            self.said.append(length)
            self.lengths.append(own_B.tolist())
            self.seconds.append(seconds)
            self.gains.append(
                sum(gain(one, own) for one, own in zip(rate_B.tolist(), own_B.tolist(), strict=True)) / self.rows
            )
        return policy

    def ratio(self, start: int = 0) -> float:
        """Return tokens per second from round ``start`` on, over those of the best fixed length, 0 included."""
        numbers = range(start, len(self.said))
        rates = [np.broadcast_to(self.rate(number), (self.rows,)).tolist() for number in numbers]
        fixed = [
            sum(gain(one, length) for rate_B in rates for one in rate_B)
            / (self.rows * len(numbers) * self.cost(self.rows, length))
            for length in range(9)
        ]
        return sum(self.gains[start:]) / sum(self.seconds[start:]) / max(fixed)


def round_report(
    accepted: np.ndarray, length: int, rows: Any = None, drafted: np.ndarray | None = None, computed: int | None = None
) -> Any:
    """Return the report of a round for a policy in which no row came near its end."""
    return types.SimpleNamespace(
        sequences=(Rows(len(accepted)) if rows is None else rows).sequences,
        lengths=np.full(len(accepted), 10),
        accepted=accepted,
        drafted=np.full(len(accepted), length) if drafted is None else drafted,
        depth=length,
        computed=len(accepted) * (length + 1) if computed is None else computed,
    )
