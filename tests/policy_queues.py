"""Queues of prompts that are decoded in batches, with known costs and acceptance, for draft-length policies."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import torch
from policy_worlds import round_report
from specframe_std.drafters.draft_model import IDLE
from specframe_std.policies.goodput import Goodput
from specframe_std.policies.round_seconds import Prior
from specframe_std.schedulers.refill import Refill

PASS, TOKEN, DRAFT_PASS, DRAFT_TOKEN = 37.7, 2.65, 4.0, 0.27
"""Milliseconds of a forward and of each of its tokens, of a target with 100 million weights and its draft model on a CPU."""
SHAPES = Prior(step=0.106, each=0.093, read=0.01)
"""What the shapes of such a pair tell."""
STANDS, ALIKE = 0.74, 28
"""Probability that a draft token is accepted, and the tokens of a row that show as much of it as all rows do."""
WAIT = 0.25
"""The option ``wait`` of ``continuous``."""
BEGINS, ENDS = 1 / 80, 1 / 20
"""Probability in each forward that another program begins, or ends, to slow the machine down: for 20 forwards of 100."""


@attrs.define(eq=False)
class Decoded:
    """A sequence of a queue."""

    request: Any
    limit: int
    length: int
    uncached: int
    """Tokens that the draft model has not read."""
    finished: bool = False


class Live(list[Decoded]):
    """The rows of a batch, on a CPU."""

    mixed = None

    def __init__(self, rows: list[Decoded], waiting: int = 0) -> None:
        super().__init__(rows)
        self.sequences, self.waiting = rows, waiting
        self.lengths, self.limits = (np.array([getattr(row, name) for row in rows]) for name in ("length", "limit"))
        self.lengths_B = torch.from_numpy(self.lengths)


class Queue:
    """Prompts that wait for a row of a batch, as ``continuous`` fills it. Seconds have 4 percent of noise where a policy decides.

    ``unequal``: prompts have from a fifth to nine fifths of the new tokens. ``likely``: factor of the acceptance probability.
    ``slower``: factor of a forward's seconds while another program runs; a policy is not blamed for these.
    """

    def __init__(
        self,
        rows: int,
        prompts: int,
        new: int,
        seed: int = 0,
        unequal: bool = False,
        likely: float = 1.0,
        slower: float = 1.0,
    ) -> None:
        draw = np.random.default_rng(seed)
        self._rows, self._draw = rows, draw
        self._prompts = draw.integers(12, 32, prompts).tolist()
        shares = draw.uniform(0.2, 1.8, prompts) if unequal else np.ones(prompts)
        self._new = np.maximum(1, np.rint(new * shares).astype(int)).tolist()
        stands = draw.beta(STANDS * ALIKE, (1 - STANDS) * ALIKE, prompts) * likely
        self._stands = draw.random((prompts, 2 * new + 10)) < np.minimum(stands, 0.99)[:, None]
        """Whether a draft token would be accepted at each place."""
        self._now = self._worked = 0.0
        self._slower, self._beside, self._idle = slower, False, IDLE
        self.drafted = 0
        """Rounds with a draft that a policy has asked for."""

    def ratios(self, runs: int, policy: Goodput | None = None) -> list[float]:
        """Return a policy's speed in each of several runs to that of the best fixed length, 0 included, of up to three."""
        best = min(self._fixed(depth) for depth in range(4))
        policy = policy or Goodput()
        policy._seconds.prior = SHAPES
        policy.clock, policy._leaves_out = lambda: self._now / 1000, lambda places, tokens: tokens < places
        return [best / self._run(policy) for _ in range(runs)]

    def _fixed(self, depth: int) -> float:
        return self._run(types.SimpleNamespace(budget=lambda _: types.SimpleNamespace(depth=depth, depths_B=None)))

    def _run(self, policy: Any) -> float:
        """Return the milliseconds in which a policy decodes all prompts where no other program runs."""
        started, learns = self._worked, hasattr(policy, "observe")
        self._idle = IDLE
        waiting, live, refill = iter(range(len(self._prompts))), list[Decoded](), Refill(WAIT, self._rows)
        left, read = len(self._prompts), False
        while left or live:
            refill.look(len(live))
            free = min(self._rows - len(live), left)
            if free and not read and (not live or refill.due(free, left)):
                live, left, read = [*live, *self._read(waiting, free)], left - free, True
                refill.filled(len(live))
                continue
            self._round(policy, Live(live, left), learns)
            live, read = [row for row in live if not row.finished] if any(row.finished for row in live) else live, False
        return self._worked - started

    def _read(self, waiting: Iterator[int], count: int) -> list[Decoded]:
        """Return rows of prompts that have been read, by the draft model as well unless it drafted nothing for a while."""
        numbers = [next(waiting) for _ in range(count)]
        tokens = [self._prompts[number] for number in numbers]
        self._work(PASS + TOKEN * sum(tokens))
        later = self._idle >= IDLE
        if not later:
            self._work(DRAFT_PASS + DRAFT_TOKEN * sum(tokens))
        return [
            Decoded(
                types.SimpleNamespace(key=(number, 0), prompt_ids=[0] * own),
                own + self._new[number],
                own + 1,
                own * later,
            )
            for number, own in zip(numbers, tokens, strict=True)
        ]

    def _work(self, milliseconds: float) -> None:
        """Let so much time pass, and more while another program runs."""
        if self._slower > 1 and self._draw.random() < (ENDS if self._beside else BEGINS):
            self._beside = not self._beside
        self._worked += milliseconds
        self._now += milliseconds * (self._slower if self._beside else 1.0)

    def _round(self, policy: Any, batch: Live, learns: bool) -> None:
        """Decode a round."""
        budget = policy.budget(batch)
        own_B = np.full(len(batch), budget.depth) if budget.depths_B is None else budget.depths_B
        own_B = np.minimum(own_B, batch.limits - batch.lengths - 1)
        computed = len(batch) + int(own_B.sum())
        seconds = PASS + TOKEN * computed
        if budget.depth:
            seconds += budget.depth * (DRAFT_PASS + DRAFT_TOKEN * len(batch))
            seconds += DRAFT_TOKEN * sum(row.uncached for row in batch)
        self._idle = 0 if budget.depth else self._idle + 1
        self.drafted += bool(budget.depth and learns)
        self._work(seconds * float(np.exp(self._draw.normal(0, 0.04 * learns))))
        accepted_B = np.zeros(len(batch), int)
        for number, (row, own) in enumerate(zip(batch, own_B.tolist(), strict=True)):
            place = row.length - len(row.request.prompt_ids)
            accepted_B[number] = self._stands[row.request.key[0], place : place + own].cumprod().sum()
            row.uncached = 0 if budget.depth else row.uncached + 1
            row.finished = row.length + int(accepted_B[number]) + 1 >= row.limit
        if learns:
            report = round_report(accepted_B, budget.depth, batch, own_B, computed)
            report.lengths = batch.lengths
            policy.observe(report)
        for row, more in zip(batch, accepted_B.tolist(), strict=True):
            row.length += more + 1
