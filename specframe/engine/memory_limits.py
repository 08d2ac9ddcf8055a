"""Device memory that ran out: how many rows go on, and when there may be more again."""

from __future__ import annotations

from specframe.errors import ModelError

CALM = 256
"""Rounds without a lack of memory after which twice the rows are tried. More rows mean that all live sequences are read in again,
which takes the time of a few rounds: that is not noticed."""


CALM_FOR_ONE = 32
"""Rounds without a lack of memory after which one sequence more is tried where sequences are preempted one by one: it costs the
reading of one prompt, which takes the time of a round or two."""


HALF = 2
"""Sequences whose tokens are a half of those that fitted when memory ran out are joined by another one at once, and so are those
that fit with all tokens that they may gain."""


class RowLimits:
    """The rows and the batch size of an engine, as memory allows.

    Args:
        batch_size: what was asked for.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = self._asked = batch_size
        self.rows: int | None = None
        """Rows that there may be, since memory ran out, or None for as many as were asked for."""
        self._most = 0
        self._calm, self._patience = 0, CALM
        self.live: int | None = None
        """Sequences that may be live, since others were preempted, or None for as many as there are rows."""
        self._calm_live, self._patience_live = 0, CALM_FOR_ONE
        self._fitted = 0
        """Tokens of the sequences that were live when others were preempted the last time."""

    def of(self, rows: int) -> int:
        """Return how many of ``rows`` rows there may be."""
        self._most = max(self._most, rows)
        return rows if self.rows is None else min(rows, self.rows)

    def shrink(self, rows: int) -> bool:
        """Go on with half of the rows there were, in half as large batches, or with the only one; return whether there were more.

        Each time but the first doubles the rounds to the next growth.
        """
        if self.rows is not None:
            self._patience *= 2
        self._calm, self.rows = 0, max(1, rows // 2)
        self.batch_size = max(1, min(self.batch_size, rows) // 2)
        return rows > 1

    def preempt_youngest(self, live: int, tokens: int) -> None:
        """Go on with one live sequence less. Each time but the first doubles the rounds to one more."""
        if self.live is not None:
            self._patience_live *= 2
        self._calm_live, self.live, self._fitted = 0, live - 1, tokens

    def let_in(self, rows: int, wanted: tuple[int, int] | None) -> None:
        """Count a round, and let one sequence more be live where one waits that memory is likely to suffice for.

        It is where the tokens say so, or after enough rounds without a lack of memory.

        Args:
            rows: sequences that may be live at all.
            wanted: the tokens of the live sequences and of the one that waits, now and at their ends, or None if none waits.
        """
        if self.live is None:
            return
        self._calm_live += 1
        if wanted is not None:
            now, at_most = wanted
            fits = at_most <= self._fitted or now * HALF <= self._fitted
            if fits or self._calm_live >= self._patience_live:
                self._calm_live, self.live = 0, self.live + 1
        if self.live >= rows:
            self.live = None

    def grow(self, wanted: bool) -> bool:
        """Count a round; return whether there may be more rows from now on, where they are wanted and memory has sufficed."""
        assert self.rows is not None, "rows grow after they were made fewer"
        self._calm += 1
        if not wanted or self._calm < self._patience:
            return False
        self._calm, self.rows = 0, 2 * self.rows
        self.batch_size = min(self._asked, 2 * self.batch_size)
        if self.rows >= self._most and self.batch_size == self._asked:
            self.rows = None
        return True

    def __str__(self) -> str:
        beyond = f" with {self.rows} sequences in memory" if self.rows != self.batch_size else ""
        return f"in batches of {self.batch_size}{beyond}"


def too_small(error: RuntimeError) -> ModelError:
    """Return the error that says that the memory does not suffice for one row, in the allocator's words."""
    reason = str(error).partition("DefaultCPUAllocator: ")[2] or str(error)
    return ModelError(f"the device's memory does not suffice for one sequence: {reason.partition('. ')[0]}")
