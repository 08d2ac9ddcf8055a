"""Guards of schedulers and executors."""

from __future__ import annotations

from typing import Any

from specframe.contracts.engine import Engine, Value
from specframe.contracts.pool import Pool
from specframe.contracts.round import Batch
from specframe.engine.error_words import value_words
from specframe.engine.guards.base import Guard, members_of


class GuardedScheduler(Guard):
    """A scheduler, guarded."""

    kind = "scheduler"

    def rows(self, batch_size: int) -> int:
        """Return the number of rows after checking it."""
        rows = self._call("rows", batch_size)
        if type(rows) is not int or rows < 1:
            self._refuse("rows", "a whole number of at least 1", value_words(rows))
        return rows

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return the scheduler's batch after checking that there is one as long as anything is unfinished."""
        batch = self._call("next_batch", pool)
        if batch is None and pool.unfinished:
            self._refuse("next_batch", f"a batch while {pool.unfinished} sequences are unfinished", None)
        if batch is not None and not (isinstance(batch, Batch) and len(batch)):
            self._refuse("next_batch", "a batch that pool.batch() made, or None", value_words(batch))
        if batch is not None and batch is not pool.latest:
            self._refuse("next_batch", "the batch that pool.batch() made last, or None", "another one")
        return batch


class GuardedExecutor(Guard):
    """An executor, guarded."""

    kind = "executor"

    def open(self, *given: Any) -> Engine:
        """Return the executor's engine after looking for its members."""
        engine = self._call("open", *given)
        if lacking := [name for name in ENGINE if not hasattr(engine, name)]:
            self._refuse(
                "open", f"an engine with {', '.join(ENGINE)}, {' and '.join(lacking)} among them", value_words(engine)
            )
        return engine

    def agree(self, value: Value) -> Value:
        """Return the executor's value after checking that it is of the same type."""
        agreed = self._call("agree", value)
        if type(agreed) is not type(value):
            self._refuse("agree", f"rank 0's {type(value).__name__}", value_words(agreed))
        return agreed


ENGINE = members_of(Engine)
"""The members of :class:`specframe.contracts.engine.Engine`."""
