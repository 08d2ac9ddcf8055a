"""The rounds of memory profiling, and the most bytes in use in the rounds of each batch."""

from __future__ import annotations

import contextlib
import gc
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Rows

import attrs

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.engine.local_engine import LocalEngine
from specframe_memory.allocations import NOTHING, OTHERS, Allocations, Peak
from specframe_memory.footprint import CACHE, FEW, HEAD, LOGITS, PASSING, SHARE, Footprint, of_some, with_part

ROUNDS = 3
"""Rounds that are decoded at the end of sequences: by the third, whatever a round keeps for the next one is there."""


class ProfiledRounds:
    """Rounds of sequences that come one batch after the other, and the most bytes that were in use in those of each."""

    def __init__(
        self,
        engine: LocalEngine,
        counter: Allocations,
        longest: int,
        like: Rows[Request],
        turns: int,
        vocabulary: int,
    ) -> None:
        self._engine, self._counter, self._longest, self._like, self._turns = engine, counter, longest, like, turns
        self._vocabulary = vocabulary
        self._cached = self._states = 0
        self._late = False
        self._rounds: list[Peak] = []
        self._growths: list[Peak] = []
        """The same of the moments at which caches grew."""
        self._live: deque[tuple[int, int]] = deque()
        self._number = 0
        self._reported = 0
        """The most bytes of a report's logits."""
        self._report: RoundReport | None = None
        """The latest round's report: who decodes has it while the next round is decoded."""

    def decode(self, prompts: Rows[int], late: bool = False) -> None:
        """Decode some rounds of sequences with these prompts, in place of as many that were there before.

        Args:
            prompts: tokens of each.
            late: whether they have been there for long: what reading them takes is not counted, but for what their caches do.
        """
        for _ in range(len(self._live) and len(prompts)):
            self._engine.abort(self._live.popleft())
        span = 1 + max(one.index for one in self._like)
        for row, tokens in enumerate(prompts):
            turn, place = divmod(row, len(self._like))
            one = self._like[place]
            index = self._number + turn * span + one.index
            request = attrs.evolve(
                one,
                index=index,
                prompt_ids=told_apart(index, tokens, self._vocabulary),
                max_new_tokens=self._longest - tokens,
                stop_token_ids=frozenset(),
                stop_checks=(),
                arrival=0.0,
                max_time=None,
            )
            self._engine.add(request)
            self._live.append(request.key)
        self._number += span * (1 + len(prompts) // len(self._like))
        self._counter.begin()
        self._late = self._late or late
        self._step()
        if late:
            self._growths.append(self._counter.made.get(CACHE, NOTHING))
            self._counter.begin()
        for _ in range(self._turns + (ROUNDS - 1 if late else 0)):
            self._step()
        self._growths.append(self._counter.made.get(CACHE, NOTHING))
        self._rounds.append(self._counter.peak)

    def count(self, peak: Peak) -> None:
        """Count what was in use at a moment that may come again together with the longest sequences."""
        self._rounds.append(peak)

    def footprint(self, most: Rows[int], trials: Rows[Peak]) -> Footprint:
        """Return what was counted.

        Args:
            most: the most bytes that the caches' stores hold, and those that they take where they grow, in place of what was
                counted, or nothing if the backend does not say.
            trials: what was counted in each model's compatibility check, without caches and heads.
        """
        held, growth = most or (self._cached, 0)
        found = [*self._rounds, *self._growths]
        if most:
            found = [with_part(one, CACHE, held) for one in self._rounds]
            found += [with_part(one, CACHE, held + growth) for one in self._growths]
        for one in trials:  # some a model goes through when it is first asked, with caches open and a report at hand
            one = with_part(one, HEAD, max(known.parts.get(HEAD, 0) for known in self._rounds))
            found.append(with_part(with_part(one, CACHE, held), LOGITS, one.parts.get(LOGITS, 0) + self._reported))
        peak = max(found, key=lambda one: one.total)
        spare = FEW + sum(nbytes for name, nbytes in peak.parts.items() if name in PASSING) // SHARE
        peak = with_part(peak, OTHERS, peak.parts.get(OTHERS, 0) + spare)
        return Footprint(peak.total, of_some(peak.parts), held + self._states)

    def _step(self) -> None:
        gc.collect()
        with uncollected():
            self._report = self._engine.step() or self._report
        if self._report is not None and self._report.logits_BTV is not None:
            self._reported = max(self._reported, self._report.logits_BTV.nbytes)
        held, states = self._engine.held_bytes
        self._cached = max(self._cached, held - states)
        self._states = self._states if self._late else max(self._states, states)


def told_apart(index: int, tokens: int, vocabulary: int) -> list[int]:
    """Return the tokens of a prompt that begins as no other does: what several begin with might be read once for all."""
    return [index // vocabulary**place % vocabulary for place in range(min(tokens, 4))] + [0] * (tokens - 4)


@contextlib.contextmanager
def only_new_is_collected() -> Iterator[None]:
    """Have collections inside the block look at no object from before it: models and modules are many, and none of its garbage."""
    freezes = not gc.get_freeze_count()  # who has frozen objects already wants them to stay so
    if freezes:
        gc.freeze()
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep what refers to itself inside the block: when it goes in a run is up to Python, and a plan is for the worst."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
