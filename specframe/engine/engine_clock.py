"""When requests arrive: the clock they arrive by, and the moments a caller gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from specframe.errors import OptionError

if TYPE_CHECKING:
    from specframe.contracts.engine import Clock  # the contracts import torch, and command lines are checked without it


class HandClock:
    """A clock that moves only by calls."""

    now: float = 0.0

    def jump(self, moment: float) -> None:
        """Go on at a later moment."""
        self.now = max(self.now, moment)


class BroadcastClock:
    """This rank's clock, read on rank 0: whether a request has arrived, and whether its time is up, is the same on every rank."""

    def __init__(self, clock: Clock, broadcast: Callable[[float], float]) -> None:
        self._clock, self._broadcast = clock, broadcast

    @property
    def now(self) -> float:
        """Seconds since the run began, as rank 0 counts them."""
        return self._broadcast(self._clock.now)

    def jump(self, moment: float) -> None:
        """Go on at a later moment: nothing happens until then."""
        self._clock.jump(moment)


def checked_arrivals(moments: Iterable[float], count: int, name: str = "the list") -> list[float]:
    """Return the moments as numbers; raise :class:`OptionError` unless there is one of at least 0 for each request."""
    moments = [float(moment) for moment in moments]
    if len(moments) != count:
        raise OptionError(f"arrivals: {name} holds {len(moments)} numbers: expected {count}, one for each prompt")
    wrong = next((moment for moment in moments if not 0 <= moment < math.inf), None)
    if wrong is not None:
        raise OptionError(f"arrivals: {name} holds {wrong}: expected seconds from the start, 0 or more")
    return moments
