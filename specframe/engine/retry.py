"""Decode everything, with fewer rows when the device's memory runs out."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator

import torch

from specframe.contracts.drafts import RoundReport
from specframe.engine.loop import Strategies, decode
from specframe.engine.pool import Pool
from specframe.errors import ModelError, SpecframeWarning
from specframe.forward.run import Run
from specframe.observe.watch import Watch
from specframe.plugins.compose import Composition


def rounds(
    use: Composition, pool: Pool, open_run: Callable[[int], Run], batch_size: int, watch: Watch
) -> Iterator[tuple[Run, RoundReport]]:
    """Decode what is in ``pool`` and yield every round's report, with the run it belongs to.

    When the device's memory runs out, live sequences give their rows back with what they have generated, and go on in batches of
    half the size; what had finished stays finished.

    Args:
        use: the strategies.
        pool: what to decode; it has no rows yet.
        open_run: returns a run with so many rows.
        batch_size: rows decoded together at first.
        watch: observers.

    Raises:
        ModelError: the memory does not suffice for one row.
    """
    while True:
        pool.put_back(min(use.scheduler.rows(batch_size), pool.unfinished))
        run = None
        try:
            run = open_run(pool.rows)
            strategies = Strategies(use.drafter, use.verifier, use.rule, use.alignment, use.scheduler, use.policy)
            for role in (use.drafter, use.verifier, use.rule, use.alignment):
                role.start(run)
            for report in decode(pool, strategies, watch):
                yield run, report
            return
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            batch_size = min(batch_size, pool.rows)
            if batch_size == 1:
                reason = str(error).partition("DefaultCPUAllocator: ")[2] or str(error)
                reason = reason.partition(". ")[0]
                raise ModelError(f"the device's memory does not suffice for one sequence: {reason}") from error
        batch_size //= 2
        if run is not None:
            run.release()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"the device's memory ran out: going on in batches of {batch_size}", SpecframeWarning, stacklevel=2
        )


def out_of_memory(error: RuntimeError) -> bool:
    """Return whether a device had no memory left; on a CPU that is no class of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
