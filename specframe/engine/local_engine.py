"""The engine of this process, in which requests come and go and every step decodes one round, and the executor that opens it."""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable
from collections.abc import Sequence as Rows
from typing import cast

import attrs

from specframe.contracts.engine import Broadcasts, Clock, MemoryBound, RankedExecutor, Value
from specframe.contracts.reports import Outcome, RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import InvariantChecks, Observer
from specframe.contracts.round import Sequence
from specframe.devices import kinds
from specframe.devices.out_of_memory import out_of_memory
from specframe.engine import loop
from specframe.engine.draft_warnings import warn_of_short_draft, warn_of_undrawn
from specframe.engine.encoding import duplicate_key, require_ids
from specframe.engine.engine_clock import BroadcastClock
from specframe.engine.guards.guard import named_error
from specframe.engine.guards.guard_table import guard, guard_all, numbers_check
from specframe.engine.guards.observers import installed_observers
from specframe.engine.memory_limits import RowLimits, too_small
from specframe.engine.open_run import Flight, Opened, captured_rounds, defers, leaves_nan, share_memory
from specframe.engine.parts import Parts
from specframe.engine.pool import Pool
from specframe.errors import PromptError, SpecframeWarning
from specframe.model.padding_free import MANY
from specframe.model.run import Run
from specframe.observe.watch import Watch
from specframe.plugins.compose import Composition
from specframe.plugins.recipe import Recipe, is_auto
from specframe.plugins.registry import registry
from specframe.row_map import rows_unknown


def single_rank() -> contextlib.AbstractContextManager[None]:
    """Return the context of a step where there is one rank."""
    return kinds.NO_CONTEXT


class DiscardedRoundError(Exception):
    """The round under way is discarded: a request of it was aborted from inside, or the engine closed."""


class LocalEngine:
    """Decodes requests round by round in this process.

    Caches are opened by the first step, with room for the requests that there are. A request that does not fit (it is longer, it is
    one more than there are rows, or it has a temperature where the rule was chosen for none) makes the next step open them anew:
    live sequences are read in again with the tokens they have, and go on. The same happens, with half the rows, when the device's
    memory runs out, and with twice as many when it has sufficed for a while. Greedy tokens, and those of rules whose tokens are
    the same whatever was drafted, stay as they are.

    Every request ends once, whatever a step raises: a round counts as a whole or not at all, and what it has ended is reported
    before an error of those who receive the report. The step after an error opens the caches anew, and goes on.

    Args:
        recipe: the options of the run.
        parts: models, tokenizers and strategies. Two engines that are open at the same time each need their own.
        observers: objects that receive every round, before those that plugins install.
        clock: says when requests arrive, and when their time is up.
        executor: the one that opened the engine; of it, ``broadcast`` is called, and ``barrier`` if it offers "ranks".
        installed: whether the observers that plugins install are called.
    """

    def __init__(
        self,
        recipe: Recipe,
        parts: Parts,
        observers: Rows[Observer],
        clock: Clock,
        executor: Broadcasts,
        installed: bool = True,
    ) -> None:
        self.peak_kv_bytes = self.state_bytes = self.remote = 0
        self._recipe, self._parts = recipe, parts
        self._limits = RowLimits(recipe.batch_size)
        self._bound: MemoryBound | None = None
        if recipe.memory is not None:
            self._bound = registry().entry("option", "memory").factory(recipe, parts)
        self._numerics = parts.composition.numerics
        self._checks: InvariantChecks | None = registry().make("option", "check") if recipe.check else None
        checks = [self._checks] if self._checks else []
        plugins = installed_observers(registry()) if installed else []
        self._watch = Watch([*observers, *plugins, *checks])
        self._broadcast = guard("executor", executor).broadcast
        self._barrier = cast(RankedExecutor, executor).barrier if "ranks" in executor.offers else single_rank
        self._clock = BroadcastClock(clock, self._broadcast)
        self._pool = self._new_pool()
        self._joined = False
        """Whether requests come after the first step."""
        self._room = 0
        self._opened: Opened | None = None
        self._held = contextlib.ExitStack()
        self._deciding = self._discarded = False
        """Whether a round is under way or reported to the drafter, and whether a call from inside has asked for the run to be shut:
        a round that is not committed by then is discarded."""
        self._late: BaseException | None = None
        """The error of an observer or policy that received the latest round, which the next step raises."""
        self._undrawn = False
        """Whether a warning has said that drafts are drawn from logits that are no distribution."""

    def _new_pool(self) -> Pool:
        runner = self._parts.runner
        pool = Pool([], 0, 0, runner.context, runner.device, clock=self._clock)
        pool.guide = self._parts.constraints.guide
        pool.samples_alone = self._bound is not None  # a plan of memory knows of no other forks
        return pool

    @property
    def idle(self) -> bool:
        """Whether every request has finished, and no error is left to raise."""
        return self._late is None and not (self._pool.live or self._pool.unfinished)

    @property
    def held_bytes(self) -> tuple[int, int]:
        """The bytes that all caches hold now, states included, and those of states alone."""
        return (self._opened.run.kv_bytes, self._opened.run.state_bytes) if self._opened else (0, 0)

    def add(self, request: Request) -> None:
        """Take a request; it is decoded from its arrival on, as soon as there is a row.

        Raises:
            PromptError: it has no tokens, more than the context holds, ids outside of the vocabulary, lengths at which the
                rotary factors change, a constraint that is not known, or the key of an unfinished request, or the bound of memory
                does not suffice for it. The other requests are not affected.
        """
        require_ids(request.prompt_ids, self._parts.runner)
        self._parts.constraints.require(request)
        self._parts.runner.require_decodable(request)
        if self._pool.holds(request.key):
            raise PromptError(duplicate_key(request))
        joined = self._joined or self._opened is not None
        counted = self._bound is None or self._bound.take(request, self._pool, joined)
        opened, idle = self._opened, self.idle
        self._pool.add(request)
        self._joined = joined
        if opened is None:
            return
        past = idle and (not opened.run.current or self._too_few_rows(opened, request))
        if past or not counted or not self._fits(opened, request):
            self._shut(keep=True)

    def make_room(self, tokens: int) -> None:
        """Open caches with room for the whole batch and for sequences of ``tokens`` tokens, whatever the first requests need."""
        self._room, self._joined = min(tokens, self._pool.context), True

    def abort(self, key: tuple[int, int]) -> Sequence | None:
        """End a request that has not finished: it may wait, be read or decode.

        Returns:
            Its sequence, with the tokens generated so far and the finish reason "abort", or None if no such request is unfinished.
            No report has it, and the tokens of the other rows stay as they are. Inside a call of a strategy or an observer it ends
            at once, too, and the round under way is discarded.
        """
        key = self._broadcast(key)
        ended = self._pool.abort(key)
        if ended is not None and self._opened:
            if self._deciding:
                self._shut()
            else:
                self._opened.run.forget_finished()
        return ended

    def step(self) -> RoundReport | None:
        """Decode one round and return its report.

        Returns:
            None where the step gave no token: it read a prefill chunk, memory ran out, or the engine is idle.

        Raises:
            ModelError: the device's memory does not suffice for one row.
        """
        if self._late is not None:
            error, self._late = self._late, None
            raise error
        if self.idle:
            return None
        pool, report, kind = self._pool, None, kinds.of(self._parts.runner.device)
        pool.most = self._limits.live
        try:
            with self._barrier() as commit_point, self._computing(), kind.any_shape():
                self._deciding, self._discarded = True, False
                opened = self._opened = self._opened or self._open(pool)
                with opened.inference:
                    try:
                        flight = loop.launched(opened, self._watch)
                        flight = flight or loop.launch(pool, opened, self._watch, self._broadcast, None)
                        try:
                            if flight and opened.deferred:
                                self._launch_ahead(pool, opened, flight)
                        finally:  # the round is committed, whatever becomes of the one after it
                            if (decoded := self._land(pool, flight, commit_point)) is not None:
                                report, outcomes = decoded
                                loop.learn(outcomes, opened.use.drafter, self._watch)
                    finally:
                        self._end(opened, report)
            if report is not None:
                self._conclude(report, opened)
        except BaseException as error:
            self._fail(pool, error, report)
            return report
        if self._limits.live is not None:
            self._limits.let_in(pool.rows, pool.tokens_with_next)
        if self._limits.rows is not None and self._limits.grow(pool.unfinished > pool.rows):
            self._shut(keep=True)
        return report

    def _end(self, opened: Opened, report: RoundReport | None) -> None:
        """Shut the run if the round under way was discarded, which waits until here, and report the one that has landed."""
        self._deciding = False
        try:
            if self._discarded:
                self._shut()
        finally:
            if report is not None:
                loop.report_round(report, opened.use.policy, self._watch)

    def _launch_ahead(self, pool: Pool, opened: Opened, flight: Flight) -> None:
        """Launch the round after one that is not landed yet, if that may be."""
        if pool.goes_on(flight.batch):
            if not flight.told:
                flight.told = True
                told = loop.outcome(flight, pool, flight.batch.lengths.copy())
                loop.learn([told], opened.use.drafter, self._watch)
            ahead = loop.launch(pool, opened, self._watch, self._broadcast, flight)
            opened.ahead.extend([ahead] if ahead else [])

    def _land(
        self, pool: Pool, flight: Flight | None, commit_point: Callable[[], None] | None
    ) -> tuple[RoundReport, list[Outcome]] | None:
        """Land a round; one during which a request was aborted, or the engine closed, is discarded."""
        kept = functools.partial(self._require_kept_round, commit_point)
        try:
            return loop.land(flight, pool, self._watch, kept) if flight and not self._discarded else None
        except DiscardedRoundError:
            return None

    def _require_kept_round(self, commit_point: Callable[[], None] | None) -> None:
        if self._discarded:
            raise DiscardedRoundError
        if commit_point:
            commit_point()

    def _fail(self, pool: Pool, error: BaseException, report: RoundReport | None) -> None:
        """Go on with fewer rows if memory ran out, else release all and raise the error, after the report if there is one."""
        self._deciding = False  # where no run could be opened
        lacking = isinstance(error, RuntimeError) and out_of_memory(error)
        if lacking and report is None and self._preempt(pool, rows_unknown(error)):
            return
        self._shut()
        if isinstance(error, RuntimeError) and lacking:
            if self._limits.shrink(pool.rows or self._limits.batch_size):  # no rows: the first opening
                self._recover(f"going on {self._limits}")
                return
            error = too_small(error)
        error = named_error(error)
        if report is None:
            raise error
        self._late = error

    def _preempt(self, pool: Pool, all_rows: bool) -> bool:
        """Have the youngest sequence be preempted where that frees memory, and all be read again if asked; return whether it has.

        Ranks have no part in it: they do not know at which of them memory ran out, and when.
        """
        opened = self._opened
        if not opened or not share_memory(opened.use) or self._barrier is not single_rank or len(pool.live) < 2:
            return False
        self._limits.preempt_youngest(len(pool.live), sum(map(pool.length, pool.live)))
        key, left = pool.preempt_youngest(all_rows).request.key, self._limits.live
        self._recover(
            f"request {key} gives its memory back to {left} others, and is read again when one of them has ended"
        )
        return True

    def _conclude(self, report: RoundReport, opened: Opened) -> None:
        """Clear up after a committed round."""
        if not self._undrawn and report.detail.host.undrawn is not None:
            self._undrawn = warn_of_undrawn(report, opened.use.drafter)
        if report.finished or report.starts:  # a parent that has ended is done with when its samples have started
            self.peak_kv_bytes = max(self.peak_kv_bytes, opened.run.kv_bytes)  # before memory is given back
            opened.run.forget_finished()
            self.state_bytes = max(self.state_bytes, opened.run.state_bytes)
            if leaves_nan(report):
                self._shut()

    def close(self) -> None:
        """Release the caches; their stores stay open for a later run. Requests that have not finished are forgotten."""
        self._pool.abort_all()  # first: nothing is kept for who does not come back
        self._shut(keep=True)
        self._pool = self._new_pool()
        self._late = None

    def _computing(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of a step's forwards."""
        if self._opened is None:
            self._parts.renew()
        return self._numerics.around(self._parts.runner.device) if self._numerics else kinds.NO_CONTEXT

    def _fits(self, opened: Opened, request: Request) -> bool:
        """Return whether a request that was just added can be decoded as things are open."""
        pool, prompt = self._pool, opened.prompt
        ruled = request.plan.greedy or not opened.greedy or not is_auto(self._recipe.accept)
        short = pool.limit(request) <= opened.longest and (prompt is None or len(request.prompt_ids) <= prompt)
        return ruled and short and pool.rows >= min(pool.unfinished, opened.most)

    def _too_few_rows(self, opened: Opened, request: Request) -> bool:
        """Return whether a bound of memory has left few rows, for the sake of sequences longer than those that there are now."""
        if self._bound is None or opened.most >= self._limits.of(opened.use.scheduler.rows(self._limits.batch_size)):
            return False
        return opened.longest > max(self._room, self._pool.limit(request))

    def _open(self, pool: Pool) -> Opened:
        """Open a run with room for what is in the pool, and start its strategies."""
        greedy = all(request.plan.greedy for request in pool.requests)
        longest = max(self._room, *map(pool.limit, pool.requests))
        use, size, prompt = self._parts.strategies(self._recipe, greedy), self._limits.batch_size, None
        if self._bound is not None:
            rows = size if self._joined else min(size, pool.unfinished)
            with self._numerics.outside() if self._numerics else kinds.NO_CONTEXT:
                # the engine of memory profiling has numerics of its own
                step, prompt, longest = self._bound.step(pool, greedy, rows, self._room, self._joined)
            use, size = step.strategies(use), step.rows
        use = guard_all(use, self._recipe.check)
        kind = kinds.of(self._parts.runner.device)
        check = numbers_check(use) if kind.queues and kind.values else None
        use = self._checks.around(use) if self._checks else use
        warn_of_short_draft(self._parts.draft_context, longest)
        most = self._limits.of(use.scheduler.rows(size))
        rows = most if self._joined else min(most, pool.unfinished)
        pool.put_back(rows, longest + use.policy.maximum.nodes + 1)
        if self._recipe.memory is not None:
            self._parts.runner.leaves_out_padding(MANY, 1)  # has the model tried while nothing else is in memory
        run = self._run(use, pool)
        pool.reserve, pool.release = run.reserve, run.forget
        self._held.callback(run.release)
        for role in (use.drafter, use.verifier, use.rule, use.alignment, use.policy):
            role.start(run)
        self._parts.stores.clear()  # what no role has taken
        pool.late_forks, pool.captures = not run.forgetful, self._bound is None and run.target.mixes
        opened = Opened(run, use, greedy, most, longest, prompt, check, "plain" in use.drafter.offers)
        if self._recipe.bitwise or self._recipe.memory is not None or self._barrier is not single_rank:
            return opened
        captured = captured_rounds(use, run, check)
        return attrs.evolve(opened, deferred=self._defers(use, run), captured=captured)

    def _defers(self, use: Composition, run: Run) -> bool:
        """Return whether rounds are launched before the ones before them are landed."""
        rounds, kind = self._recipe.rounds, kinds.of(self._parts.runner.device)
        wanted = rounds == "deferred" or (rounds == "auto" and kind.queues and kind.event is not None)
        return wanted and defers(use, run)

    def _run(self, use: Composition, pool: Pool) -> Run:
        recipe, parts = self._recipe, self._parts
        start = self._checks.run if self._checks else Run
        bounded = recipe.memory is not None
        models = [parts.runner, *([parts.stores.runner(parts.draft)] if bounded and parts.draft else [])]
        planned = not bounded or not any(one.state_layers for one in models)  # no plan has what graphs keep of states
        if self._barrier is not single_rank:
            parts.stores.forget_prompts()  # no rank sees what was written to another's part of the weights
        rows, capacity = parts.stores.room(parts.runner, use.kv, pool.rows, pool.capacity, bounded)
        return start(
            parts.runner,
            use.alignment,
            use.rule,
            use.kv,
            rows,
            capacity,
            self._watch,
            seed=recipe.seed,
            steady="steady" in use.policy.offers,
            draft_model=parts.draft,
            target_tokenizer=parts.tokenizer,
            draft_tokenizer=parts.draft_tokenizer,
            attention=() if recipe.bitwise and isinstance(use.attention, tuple) else use.attention,
            graphs=recipe.graphs if planned else "off",
            layers=recipe.layers,
            stores=None if self._checks else parts.stores,
        )

    def _shut(self, keep: bool = False) -> None:
        """Release the run that is open, or have that done after the round that is under way in it.

        Args:
            keep: leave its stores open for a later run. What a round has failed in, or ran out of memory in, is opened anew.
        """
        if self._deciding:
            self._discarded = True
            return
        opened, self._opened = self._opened, None
        with contextlib.closing(self._held):
            if opened and keep:
                opened.run.put_away()

    def _recover(self, how: str) -> None:
        """Free the device's memory after it ran out, and say how things go on."""
        gc.collect()
        kinds.free()
        warnings.warn(f"the device's memory ran out: {how}", SpecframeWarning, stacklevel=4)


class Local:
    """The executor of this process."""

    offers = frozenset[str]()

    def open(self, recipe: Recipe, parts: Parts, observers: Rows[Observer], clock: Clock) -> LocalEngine:
        """Return an engine of this process."""
        return LocalEngine(recipe, parts, observers, clock, self)

    def broadcast(self, value: Value) -> Value:
        """Return the value itself: every row is decoded by one process."""
        return value
