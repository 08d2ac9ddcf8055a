"""Processes of this machine, from ``/proc``: which ones a command has begun, and whether they have ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

LEAVE = 60.0
"""Seconds that processes of a killed run have to end."""


def processes() -> dict[int, int]:
    """Return the parent of every process."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, _, rest = status.read_text().partition(" (")
            found[int(pid)] = int(rest.rpartition(")")[2].split()[1])
    return found


def descendants(process: int) -> list[int]:
    """Return the processes that a process has begun, and those that they have begun."""
    parents = processes()
    found = [process]
    for one in found:
        found += [pid for pid, parent in parents.items() if parent == one]
    return found[1:]


def words(process: int) -> list[str]:
    """Return the command line of a process, or nothing if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text(errors="replace").strip("\0").split("\0")
    except OSError:
        return [""]


def began(process: int) -> str:
    """Return when a process has begun, which distinguishes it from a later one of its number, or "" if it has ended."""
    try:
        state, *rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]


def kill(process: int) -> None:
    """End a process by `kill -9`."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def gone(own: dict[int, str]) -> int:
    """Return how many of some processes stay, and end them."""
    end = time.monotonic() + LEAVE
    while (left := [one for one, then in own.items() if then and began(one) == then]) and time.monotonic() < end:
        time.sleep(0.1)
    for one in left:
        kill(one)
    return len(left)
