"""Watchdog of strategies: a line on standard error names the strategy whose call takes long, so that a hanging run is explained."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

import click

PATIENCE = 60.0
"""Seconds after which a call is reported: only very long prompts and compilation normally take longer."""

PACE = 5.0
"""Seconds between two checks: short against :data:`PATIENCE`, and at almost no cost."""


class Watchdog:
    """Checks the current call of a strategy, and reports each call once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._told = clock, None

    def look(self) -> str | None:
        """Return a line on the current call if it has taken long and was not reported yet."""
        # not imported here, since they import torch; absent until something decodes
        calls, words = (sys.modules.get(f"specframe.engine.{name}") for name in ("guards.guard", "error_words"))
        now = calls.longest_running() if calls else None
        if words is None or now is None or now is self._told or self._clock() - now[2] < PATIENCE:
            return None
        self._told = now
        whose = words.strategy_name(now[0].kind, now[0])
        return f"specframe: {whose}: {now[1]}() has been running for {PATIENCE:.0f} s; Ctrl-C ends the run"


@contextlib.contextmanager
def watch_calls() -> Iterator[None]:
    """Name the strategy whose call takes long, on standard error, while the block runs.

    A thread looks regularly, and ends with the block.
    """
    over, dog = threading.Event(), Watchdog()

    def watch() -> None:
        while not over.wait(PACE):
            if line := dog.look():
                click.echo(line, err=True)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()
