"""Rounds that are captured whole, as one graph each: drafts, the target's forward, what is accepted, tokens and lengths.

What such a round reads and writes is on the device, in memory that does not move: the tokens, lengths, limits and random streams of
rows, and their keys and values. All else that it depends on is its kind: each kind has a graph of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, cast

import attrs
import numpy as np

from specframe.contracts.drafts import Acceptance, Budget, Check, Draft, Scores, Transfer
from specframe.contracts.roles import CapturedDrafter, Drafter
from specframe.contracts.round import Batch, Bounded, Sequence
from specframe.devices.kinds import Forms
from specframe.engine.open_run import Flight
from specframe.model.run import Run
from specframe.observe.watch import Watch
from specframe.plugins.compose import Composition
from specframe.text.sampling import reads_tokens
from specframe.value_checks import unwrap_guards
from specframe_std.graphs.graph_cache import GraphCache, Outputs, bucket

ROUNDS = 64
"""Times that rounds of a kind are decoded before they are captured whole; their forwards are replayed until then, which saves most.
To capture a round the host queues it twice without a graph (56 ms for a forward of 36 layers). Some hundred rounds gain that
back, at a millisecond each; a run that has had 64 mostly has more."""


@attrs.define(eq=False)
class WholeRound:
    """The device's part of a round of one kind."""

    _batch: Batch
    """Rows whose lengths are on the device alone."""
    _decide: Callable[[Batch], Flight]
    _keep: Callable[[Batch, Draft, Scores], None]
    _append: Callable[[Batch, Acceptance], None]
    _watch: Watch
    forms: Forms = attrs.Factory(dict)
    computed: int = 0
    """Tokens that the target computes."""
    forwards: list[tuple[Any, ...]] = attrs.Factory(list)
    """What tells observers of its forwards."""

    def __call__(self) -> Outputs:
        """Queue the round; return the numbers of a transfer, the logits, and those after processors where they are others."""
        with self._watch.holding() as self.forwards:
            flight = self._decide(self._batch)
            joined, self.forms = flight.transfer.joined()
            self._keep(self._batch, flight.draft, flight.scores)
            # last: what fails before it leaves rows as they are
            self._append(self._batch, flight.transfer.acceptance)
        self.computed = flight.computed
        shaped = () if flight.processed_BTV is flight.logits_BTV else (flight.processed_BTV,)
        return joined, flight.logits_BTV, *shaped


class CapturedRounds:
    """The captured rounds of one run.

    Args:
        run: the run, which has started.
        drafter: its drafter.
        check: checks a round's numbers when they come to the host, or None if they are checked at once.
        graphs: where captured rounds are kept.
    """

    def __init__(self, run: Run, drafter: Drafter, check: Check | None, graphs: GraphCache) -> None:
        self._run, self._drafter, self._check, self._graphs = run, cast(CapturedDrafter, drafter), check, graphs
        self._rows: list[Sequence] = []
        self._plans: tuple[Any, ...] | None = None
        """What these rows' processors compute, or None where they read tokens of the host."""

    def kind(self, batch: Batch, budget: Budget) -> Hashable | None:
        """Return what a round depends on, or None, as :meth:`specframe.contracts.graphs.CapturedRounds.kind` has it."""
        chain = budget.nodes == budget.depth and budget.depths_B is None and budget.stopping is None
        if not chain or batch.prefill or batch.starts or batch.mixed is not None:
            return None
        if batch.sequences is not self._rows:  # the same list for as long as the rows are the same
            plans = [one.request.plan for one in batch.sequences]
            self._rows = batch.sequences
            self._plans = None if reads_tokens(batch) else tuple((one.kinds, one.greedy, one.own) for one in plans)
        if self._plans is None:
            return None
        caches = self._run.all_caches
        if any(one.rounds is None for one in caches) or (how := self._drafter.prepare(batch, budget)) is None:
            return None
        extent, most = bucket(batch.longest + budget.depth), batch.tokens.shape[1]
        if extent > most or all(one.packs for one in caches):
            extent = most
        return budget.depth, extent, how, self._plans

    def decoded(
        self,
        kind: Any,
        batch: Batch,
        budget: Budget,
        decide: Callable[[Batch, Draft], Flight],
        append: Callable[[Batch, Acceptance], None],
    ) -> Flight | None:
        """Return a round as one graph, or None, as :meth:`specframe.contracts.graphs.CapturedRounds.decoded` has it."""

        def prepare() -> tuple[WholeRound, WholeRound]:
            whole = WholeRound(
                anywhere(batch, kind[1] - kind[0]),
                lambda rows: decide(rows, self._drafter.draw(rows, budget)),
                self._drafter.keep,
                append,
                self._run.watch,
            )
            return whole, whole

        for cached in self._run.all_caches:
            cached.follow(batch)
        with self._run.watch.stage("verify"):
            if (found := self._graphs.take(kind, prepare, ROUNDS)) is None:
                return None
            whole, outputs = found.buffers, found.recording.replay(len(batch))
            transfer = Transfer.of_joined(outputs[0], whole.forms, self._check)
        for tell, *forward in whole.forwards:
            tell(*forward)
        logits_BTV, computed = outputs[1], whole.computed
        return Flight(batch, transfer.draft, Scores(logits_BTV), transfer, logits_BTV, outputs[-1], computed, told=True)


def rounds_of(run: Run, use: Composition, check: Check | None) -> CapturedRounds | None:
    """Return the captured rounds of a run whose target is captured, or None where rounds are not captured whole."""
    apart = any(cached.runner.by_rows for cached in run.caches)  # rows' kinds are no tensors of theirs
    if apart or not prepares(use.drafter):
        return None
    return CapturedRounds(run, use.drafter, check, cast(GraphCache, run.target.rounds))


def prepares(drafter: Drafter) -> bool:
    """Return whether a drafter's rounds can be captured: an object or a subclass may have another ``propose``, which would not be
    called."""
    inner = unwrap_guards(drafter)
    own = getattr(inner, "__dict__", {}), *map(vars, type(inner).__mro__)
    made = [name for one in own for name in ("prepare", "propose") if name in one]
    return "captured" in drafter.offers and made[:1] != ["propose"]


def anywhere(batch: Batch, most: int) -> Bounded:
    """Return a batch of these rows, of which the host knows that they have a token, and ``most`` at most."""
    rows = len(batch)
    return Bounded(
        batch.sequences,
        batch.tokens_BS,
        batch.lengths_B,
        batch.tokens,
        np.full(rows, most),
        batch.limits,
        batch.streams_B,
        prefill=False,
        least=np.ones(rows, dtype=np.int64),
    )
