"""A line on standard error when one call of a strategy takes long: whose it is, so that a run that hangs says where."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

import click

PATIENCE = 60.0
"""Seconds a call may take before it is told: longer than anything but a very long prompt, or layers that are compiled."""

PACE = 5.0
"""Seconds between two looks."""


class Watchdog:
    """Looks at the call that is under way; each is told once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._told = clock, None

    def look(self) -> str | None:
        """Return a line on the call under way when it has taken long and was not told yet."""
        guard = sys.modules.get("specframe.engine.guard")  # torch comes with it: where nothing decodes there is none
        now = guard.RUNNING.now if guard else None
        if guard is None or now is None or now is self._told or self._clock() - now[2] < PATIENCE:
            return None
        self._told = now
        whose = guard.called(now[0].kind, now[0])
        return f"specframe: {whose}: {now[1]}() has been running for {PATIENCE:.0f} s; Ctrl-C ends the run"


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Look now and then while the block runs, in one thread that ends with it."""
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
