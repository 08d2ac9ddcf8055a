"""The worker processes: begun, listened to, replaced when they die, and ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import weakref
from collections import deque
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any

import attrs

from specframe.engine.parts import Parts
from specframe.errors import ModelError
from specframe.model.twin import ModelState
from specframe.models.pairs import is_module
from specframe_std.executors.workers import messages as m
from specframe_std.executors.workers.worker import main

if TYPE_CHECKING:
    from specframe.plugins.recipe import Recipe

STARTS = 5
"""Times that a worker may be killed one after the other before it has its models."""

PATIENCE = 5.0
"""Seconds that a worker has to end after its pipe was closed; then it is killed."""


@attrs.define(eq=False)
class WorkerProcess:
    """One worker, as this process knows it."""

    number: int
    child: SpawnProcess
    pipe: Connection
    starts: int = 1
    """Processes that were begun in its place since one last had its models."""
    recipe: int = 0
    """Number of the recipe whose parts it has, or 0 for none yet."""

    def send(self, message: Any) -> None:
        """Send a message; one to a worker that has died is lost, and its death is noticed when it is listened to."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(pickle.dumps(message))

    def end(self) -> None:
        """Close the pipe, which ends the process."""
        self.pipe.close()
        self.child.join(PATIENCE)
        if self.child.is_alive():
            self.child.kill()
            self.child.join()

    @property
    def fate(self) -> str:
        """How the process ended, in words."""
        self.child.join(PATIENCE)
        code = self.child.exitcode
        return f"by signal {-code}" if code and code < 0 else f"with exit status {code}"


class WorkerProcesses:
    """Worker processes. They stay, with their models, from one run to the next.

    Args:
        count: number of workers.
        as_needed: whether a run begins with one, or those there are, and others follow by :meth:`add`.
    """

    def __init__(self, count: int, as_needed: bool = False) -> None:
        self._count, self._first = count, 1 if as_needed else count
        self.processes: list[WorkerProcess] = []
        self.run = 0
        """Number of the run that the workers are at, or 0 for none."""
        self._runs = self._recipes = 0
        self._parts: weakref.ref[Parts] | None = None
        self._sent: list[ModelState] = []
        """The models that the workers have copies of, as they were when these were made."""
        self._speaking: deque[WorkerProcess] = deque()
        """Workers of which each has a message, or has died."""
        self._over = weakref.finalize(self, end_processes, self.processes)

    def begin(self, recipe: Recipe, parts: Parts) -> int:
        """Have the workers up that a run with these parts begins with, and return the run's number.

        Loaded models that have changed since workers were sent their copies are sent again, and so is a drafter's head that
        learns, its ``weights``.
        """
        held: list[Any] = [recipe.target, recipe.drafter, getattr(recipe.drafter, "weights", None)]
        loaded = [ModelState.of(one) for one in held if is_module(one)]
        known = self._parts is not None and self._parts() is parts
        if not (known and all(map(ModelState.equals, loaded, self._sent))):
            self._parts, self._recipes, self._sent = weakref.ref(parts), self._recipes + 1, loaded
        while len(self.processes) < self._first:
            self.add()
        self._runs += 1
        self.run = self._runs
        return self.run

    @property
    def missing(self) -> int:
        """Number of workers that have not been begun."""
        return self._count - len(self.processes)

    def add(self) -> WorkerProcess:
        """Begin another worker."""
        self.processes.append(start_process(len(self.processes), self._count))
        return self.processes[-1]

    def stay(self) -> None:
        """Begin no further workers than there are."""
        self._count = self._first = len(self.processes)

    def open(self, process: WorkerProcess, recipe: Recipe, parts: Parts) -> None:
        """Have a worker open an engine; it is sent the recipe unless it has the parts already."""
        data = m.packed_recipe(recipe) if process.recipe != self._recipes else None
        kind = parts.runner.device.type
        process.send(m.Open(self.run, data, recipe.batch_size, recipe.seed, kind))
        process.recipe = self._recipes

    def listen(self, timeout: float | None) -> tuple[WorkerProcess, Any] | None:
        """Return the next message of this run and its worker; the message is None where the worker has died.

        Args:
            timeout: seconds to wait at most, or None if until there is one.

        Returns:
            None: the time is up.
        """
        while True:
            if not self._speaking:
                pipes = {process.pipe: process for process in self.processes}
                self._speaking.extend(pipes[pipe] for pipe in wait([*pipes], timeout))  # type: ignore[index]
            if not self._speaking:
                return None
            process = self._speaking.popleft()
            try:
                run, message = pickle.loads(process.pipe.recv_bytes())
            except (EOFError, OSError):
                return process, None
            if run == self.run:
                if isinstance(message, m.Ready):
                    process.starts = 0
                return process, message

    def replace(self, process: WorkerProcess) -> WorkerProcess:
        """Begin a process in place of one that has died, and return its worker.

        Raises:
            ModelError: processes in this place end before they have their models.
        """
        fate = process.fate
        if process.starts and (process.starts >= STARTS or (process.child.exitcode or 0) >= 0):
            self.dismiss()
            raise ModelError(
                f"worker {process.number} ended {fate} before it had its models: expected one that starts; a script begins workers "
                "below `if __name__ == '__main__':`"
            )
        process.end()
        made = start_process(process.number, self._count)
        made.starts = process.starts + 1
        self.processes[process.number] = made
        return made

    def release(self) -> None:
        """Have the workers forget the run."""
        for process in self.processes:
            process.send(m.Close())
        self.run = 0

    def dismiss(self) -> None:
        """End all processes; the next run begins others."""
        self._speaking.clear()
        end_processes(self.processes)
        self.run = 0


def end_processes(processes: list[WorkerProcess]) -> None:
    """End workers."""
    for process in processes:
        process.pipe.close()
    for process in processes:
        process.end()
    processes.clear()


def start_process(number: int, count: int) -> WorkerProcess:
    """Return a new worker."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(
        target=main, args=(theirs, number, count), name=f"specframe-worker-{number}", daemon=True
    )
    with uninterrupted():
        process.start()
    theirs.close()
    return WorkerProcess(number, process, ours)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Begin processes that Ctrl-C does not reach: this process ends them.

    The tracker of multiprocessing's resources is begun before: beginning it unblocks Ctrl-C in this process.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
