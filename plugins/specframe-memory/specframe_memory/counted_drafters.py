"""A drafter whose head is counted as one part, whose caches are counted as the run's, and whose reading is counted alone, too."""

from __future__ import annotations

import copy
from typing import Any, cast

from specframe.contracts.cache import KVBackend
from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.round import Batch
from specframe.model.cached import CachedModel
from specframe.model.run import Run
from specframe_memory.allocations import NOTHING, OTHERS, Allocations
from specframe_memory.counted_caches import CountedKV
from specframe_memory.footprint import HEAD


class CountedDrafter:
    """A drafter: what it makes when it starts is its head, unless a draft model drafts.

    What reading the head's file takes for a moment is not counted, as that of the models is not.

    Args:
        drafter: the drafter, which no run has started yet.
        counter: counts.
        kv: the run's backend.
    """

    def __init__(self, drafter: Any, counter: Allocations, kv: CountedKV) -> None:
        self._drafter, self._counter, self._kv = drafter, counter, kv
        self.reading = NOTHING
        """The most bytes in use while a draft model read prompts. One that has not drafted for long reads as much."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def start(self, run: Run) -> None:
        """Begin a run."""
        self._reads = run.draft_model is not None
        with self._counter.part(HEAD if run.draft_model is None else OTHERS):
            self._drafter.start(CountedRun(run, self._kv))
        self._counter.begin()

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return the drafter's draft."""
        if not (batch.prefill and self._reads):
            return cast(Draft, self._drafter.propose(batch, budget))
        with self._counter.span() as most:
            draft = self._drafter.propose(batch, budget)
        self.reading = max(self.reading, *most, key=lambda one: one.total)
        return cast(Draft, draft)


def unstarted(drafter: Any) -> Any:
    """Return a copy of a drafter that no run has started, or the drafter itself where it cannot be copied.

    A head that earlier memory profiling has made would not be counted as made in this one.
    """
    try:
        return copy.deepcopy(drafter)
    except Exception:  # whatever a third party's object raises
        return drafter


class CountedRun:
    """A run whose caches are counted, those in a backend of their own, too."""

    def __init__(self, run: Run, kv: CountedKV) -> None:
        self._run, self._kv = run, kv

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def open_cache(self, model: Any, *, kv: KVBackend | None = None, **options: Any) -> CachedModel:
        """Return a model with a cache, as :meth:`specframe.model.run.Run.open_cache` does."""
        return self._run.open_cache(model, kv=kv and self._kv.beside(kv), **options)
