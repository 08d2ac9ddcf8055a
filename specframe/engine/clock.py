"""A clock that shows the same time to every rank of a run."""

from __future__ import annotations

from collections.abc import Callable

from specframe.engine.arrivals import Clock


class AgreedClock:
    """Another clock, read on rank 0.

    Whether a request has arrived, and whether its time is up, is then the same on every rank.

    Args:
        clock: this rank's own.
        agree: returns rank 0's value, see :meth:`specframe.contracts.run.Executor.agree`.
    """

    def __init__(self, clock: Clock, agree: Callable[[float], float]) -> None:
        self._clock, self._agree = clock, agree

    @property
    def now(self) -> float:
        """Seconds since the run began, as rank 0 counts them."""
        return self._agree(self._clock.now)

    def jump(self, moment: float) -> None:
        """Go on at a later moment: nothing happens until then."""
        self._clock.jump(moment)
