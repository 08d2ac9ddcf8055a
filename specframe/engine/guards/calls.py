"""The calls of strategies that are under way, and the errors that pass through guards."""

from __future__ import annotations

from typing import Any

from specframe.devices.memory import out_of_memory
from specframe.errors import SpecframeError

Call = tuple[Any, str, float]
"""A call of a strategy: its guard, the member, and since when (seconds of ``time.monotonic``)."""


RUNNING: dict[int, Call | None] = {}
"""The calls of strategies that are under way, the innermost one of each thread; None: the thread is in none. Every call is entered
here: nothing is locked, as one entry is one thread's."""


def longest_running() -> Call | None:
    """Return the call that has run longest, for whoever wants to tell where a run hangs; None: no call is under way."""
    return min((call for call in [*RUNNING.values()] if call), key=lambda call: call[2], default=None)


def passes(error: BaseException) -> bool:
    """Return whether an error is passed on unchanged: specframe's own errors, warnings turned into errors, and lack of memory."""
    if isinstance(error, SpecframeError | Warning | MemoryError):
        return True
    return isinstance(error, RuntimeError) and out_of_memory(error)
