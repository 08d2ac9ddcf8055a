"""Threads that watch a job: they report its progress and machines that are lost, and end it where Ray has ended on this one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import ray

from specframe.errors import SpecframeWarning

Progress = Callable[[int, int], None]
"""Receives how many rows are done, of how many."""
PACE = 0.5
"""Seconds between two looks."""
NODES_PACE = 5.0
"""Seconds between two looks at the machines of the cluster."""
PATIENCE = 5.0
"""Seconds that a thread has to end, which may wait for Ray."""


class Gone(BaseException):
    """Ray's own process on this machine has ended. Raised in the thread that runs the job, also within Ray's own code."""


class WorkerReport:
    """Reports a count that an actor keeps, from inside of ``with``, at its begin and at its end too.

    Args:
        ask: asks the actor, and returns a reference to the count.
        tell: is given the count.
    """

    def __init__(self, ask: Callable[[], Any], tell: Callable[[int], None]) -> None:
        self._ask, self._tell, self._over = ask, tell, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._tell(0)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; after a job that is complete the last count is reported."""
        self._over.set()
        self._thread.join(PATIENCE)
        if error is None:
            self._tell(ray.get(self._ask()))

    def _look(self) -> None:
        asked = None
        while not self._over.wait(PACE):
            with contextlib.suppress(ray.exceptions.RayError):  # the job reports what is wrong
                asked = asked or self._ask()
                if ray.wait([asked], timeout=PACE)[0]:
                    self._tell(ray.get(asked))
                    asked = None


@contextlib.contextmanager
def raylet_watched() -> Iterator[None]:
    """Raise :class:`Gone` in the block when Ray's own process on this machine ends, also while Ray begins in the block.

    Without it Ray waits for minutes if it has not begun, and otherwise ends this process by itself some seconds later, without a
    sentence. Where processes cannot be looked at (no ``/proc``) nothing is watched.
    """
    before = begun_here()
    process: int | None = None
    over, here = threading.Event(), threading.get_ident()

    def gone() -> bool:
        nonlocal process
        if process is None:
            with contextlib.suppress(Exception):  # the job reports what is wrong with Ray
                process = the_raylet(before)
        return process is not None and ended(process)

    def look() -> None:
        while not over.wait(PACE):
            if gone():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(here), ctypes.py_object(Gone))
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    except Gone:
        raise
    except BaseException:
        if gone():
            raise Gone from None
        raise
    finally:
        over.set()
        thread.join()


def interruptible(call: Callable[[], object]) -> None:
    """Call something in another thread and wait: :class:`Gone` is raised here also while Ray's own code does not return.

    The thread stays for as long as this process lives, since the kernel ends Ray's processes with the thread that began them.
    """
    over, errors = threading.Event(), []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)
        over.set()
        threading.Event().wait()

    threading.Thread(target=run, daemon=True).start()
    while not over.wait(PACE):
        pass
    if errors:
        raise errors[0]


def the_raylet(before: set[int]) -> int | None:
    """Return Ray's own process on this machine: of the cluster that was joined, or the one that this process has begun.

    Args:
        before: processes that are not meant.
    """
    if ray.is_initialized():
        return raylet(ray.get_runtime_context().get_node_id())
    return min(begun_here() - before, default=None)


@contextlib.contextmanager
def nodes_watched(cpus: float, gpus: float) -> Iterator[None]:
    """Warn in the block of machines that leave the cluster, which Ray reports to nobody.

    Args:
        cpus, gpus: what one actor takes.
    """
    known = alive()
    over = threading.Event()

    def look() -> None:
        while not over.wait(NODES_PACE):
            with contextlib.suppress(Exception):  # the job reports what is wrong with Ray
                now = alive()
                for node in sorted(known - now):
                    warnings.warn(loss(node, cpus, gpus), SpecframeWarning, stacklevel=2)
                known.clear()
                known.update(now)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE)


def alive() -> set[str]:
    """Return the ids of the machines of the cluster."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def loss(node: str, cpus: float, gpus: float) -> str:
    """Return the sentence on a machine that has left the cluster."""
    left = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    room = any(one.get("CPU", 0) >= cpus and one.get("GPU", 0) >= gpus for one in left)
    lost = f"executor ray: node {node} has left the cluster"
    if room:
        return f"{lost}: its rows are decoded by the others"
    return f"{lost}, and no other has room for an actor: the job waits for one; ended, it is completed by --resume"


def begun_here() -> set[int]:
    """Return Ray's own processes that this process has begun, also those that have ended and of which nobody has taken note."""
    found = set()
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                start, _, rest = file.read().rpartition(b") ")
                if start.endswith(b"(raylet") and int(rest.split()[1]) == os.getpid():
                    found.add(int(name))
    return found


def raylet(node: str) -> int | None:
    """Return the process id of Ray's own process of a node, if it is on this machine."""
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
                if words[0].endswith("raylet") and f"--node_id={node}" in words:
                    return int(name)
    return None


def ended(process: int) -> bool:
    """Return whether a process has ended; its parent may not have taken note."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True
