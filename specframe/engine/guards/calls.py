"""The calls of strategies that are under way, and the errors that pass through guards."""

from __future__ import annotations

import threading
from typing import Any

import attrs

from specframe.devices.memory import out_of_memory
from specframe.errors import SpecframeError

Call = tuple[Any, str, float]
"""A call of a strategy: its guard, the member, and since when (seconds of ``time.monotonic``)."""


@attrs.define
class Running:
    """The calls of strategies that are under way, the innermost one of each thread."""

    _calls: dict[int, Call | None] = attrs.Factory(dict)

    @property
    def now(self) -> Call | None:
        """The call that has run longest; None: no call is under way."""
        return min((call for call in [*self._calls.values()] if call), key=lambda call: call[2], default=None)

    def put(self, call: Call | None) -> Call | None:
        """Make a call this thread's, None when the thread is in none; return the call that the thread was in before.

        Every call of a strategy passes here twice, so nothing is locked or compared: one entry of a dictionary is one thread's.
        """
        thread = threading.get_ident()
        outer = self._calls.get(thread)
        self._calls[thread] = call
        return outer


RUNNING = Running()
"""The calls of this process, for whoever wants to tell where a run hangs."""


def passes(error: BaseException) -> bool:
    """Return whether an error is passed on unchanged: specframe's own errors, warnings turned into errors, and lack of memory."""
    if isinstance(error, SpecframeError | Warning | MemoryError):
        return True
    return isinstance(error, RuntimeError) and out_of_memory(error)
