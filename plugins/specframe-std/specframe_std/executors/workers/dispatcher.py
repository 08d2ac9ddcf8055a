"""The engine of a process whose workers decode: it dispatches requests to them and reports their rounds as its own."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence as Rows
from typing import Any

import attrs

from specframe.contracts.engine import Clock
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.contracts.round import Sequence
from specframe.engine.encoding import duplicate_key, require_ids
from specframe.engine.guards.observers import installed_observers
from specframe.engine.parts import Parts
from specframe.errors import PromptError, SpecframeWarning, sentence
from specframe.observe.stopwatch import REMOTE
from specframe.observe.watch import Watch
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry
from specframe_std.executors.workers import messages as m
from specframe_std.executors.workers.jobs import Job, JobQueue, report_of, report_of_failure
from specframe_std.executors.workers.processes import WorkerProcess, WorkerProcesses

MOST_DEATHS = 3
"""Workers that may die with a request. From the last but one on it has a worker to itself, so that it alone is blamed."""


@attrs.define(eq=False)
class Assignment:
    """What one worker is at."""

    process: WorkerProcess
    jobs: dict[int, Job] = attrs.Factory(dict)
    """The requests it has, by ticket."""
    ready: bool = False
    stages: dict[str, float] = attrs.Factory(dict)
    """The seconds of its stages, as far as observers have received them."""
    peak_kv_bytes: int = 0
    state_bytes: int = 0

    @property
    def reserved(self) -> bool:
        """Whether it may be given nothing else."""
        return any(job.alone for job in self.jobs.values())


class DispatchingEngine:
    """Dispatches requests to workers, as many as they have rows for and a few more, and reports what comes back.

    A worker that dies is replaced, and its requests are decoded again. A request that workers keep dying with, or that raises an
    error, ends with an error; the others go on.

    Args:
        recipe: the options of the run.
        parts: the parts of this process.
        observers: receive every round and forward, before those that plugins install. What they see of a round has no logits.
        clock: says when requests arrive.
        processes: the workers.
    """

    def __init__(
        self, recipe: Recipe, parts: Parts, observers: Rows[Observer], clock: Clock, processes: WorkerProcesses
    ) -> None:
        self.peak_kv_bytes = self.state_bytes = 0
        self._recipe, self._parts, self._clock, self._processes = recipe, parts, clock, processes
        self._watch = Watch([*observers, *installed_observers(registry())])
        self._jobs: dict[int, Job] = {}
        self._keys: dict[tuple[int, int], int] = {}
        """The ticket of each unfinished request, by its key."""
        self._queue = JobQueue()
        self._tickets, self._numbers = itertools.count(), itertools.count(1)
        self._room = 0
        self._late: BaseException | None = None
        """The error of an observer that received the latest round, which the next step raises."""
        self._untold: m.Round | None = None
        """A worker's round of which observers have received nothing yet, with the seconds of each stage since they did last."""
        rows = parts.composition.scheduler.rows(recipe.batch_size)
        self._window = rows + (rows + 1) // 2
        try:
            self._run = processes.begin(recipe, parts)
            self._workers = [Assignment(process) for process in processes.processes]
            self.remote = rows * (len(self._workers) + processes.missing)
            for worker in self._workers:
                processes.open(worker.process, recipe, parts)
            while not all(worker.ready for worker in self._workers):
                self._listen(None)
        except BaseException:
            processes.dismiss()
            raise

    @property
    def idle(self) -> bool:
        """Whether every request has finished, and no error is left to raise."""
        return self._late is None and not self._jobs

    def add(self, request: Request) -> None:
        """Take a request; raise :class:`PromptError` where it cannot be decoded."""
        runner = self._parts.runner
        require_ids(request.prompt_ids, runner)
        self._parts.constraints.require(request)
        runner.require_decodable(request)
        if request.key in self._keys:
            raise PromptError(duplicate_key(request))
        limit = min(len(request.prompt_ids) + request.max_new_tokens, runner.context)
        job = Job(next(self._tickets), Sequence(request, limit))
        self._jobs[job.ticket], self._keys[request.key] = job, job.ticket
        self._queue.put(job)
        self._room = max(self._room, limit)

    def make_room(self, tokens: int) -> None:
        """Have workers open caches with room for sequences of ``tokens`` tokens."""
        self._room = max(self._room, tokens)

    def abort(self, key: tuple[int, int]) -> Sequence | None:
        """End a request that has not finished, and return its sequence with the reported tokens."""
        if (ticket := self._keys.get(key)) is None:
            return None
        job = self._jobs[ticket]
        self._drop(job)
        self._queue.drop(job)
        for worker in self._workers:
            if worker.jobs.pop(job.ticket, None):
                worker.process.send(m.Abort(job.ticket))
        job.sequence.token_ids = job.told
        job.sequence.finish("abort")
        return job.sequence

    def step(self) -> RoundReport | None:
        """Dispatch what has arrived, wait for a worker, and report its round, or None if nothing new has come.

        Raises:
            SpecframeError: what a worker raises where no request is at fault, as one process would.
        """
        if self._late is not None:
            error, self._late = self._late, None
            raise error
        if self.idle:
            return None
        report = None
        self._add_workers()
        try:
            with self._watch.stage(REMOTE):
                report = self._dispatch() or self._listen(self._patience())
            self._tell(report)
        except BaseException as error:
            if report is None:
                raise
            self._late = error  # what has ended is reported first
        return report

    def _add_workers(self) -> None:
        """Begin workers that have not been begun, as long as there are more requests than workers, and the system begins them."""
        while self._processes.missing and len(self._workers) < len(self._jobs):
            try:
                process = self._processes.add()
            except OSError as error:  # of memory, or of processes that one user may have
                told = f"no more than {len(self._workers)} workers can be begun: {sentence(error)}"
                warnings.warn(told, SpecframeWarning, stacklevel=2)
                self._processes.stay()
                return
            self._workers.append(Assignment(process))
            self._processes.open(self._workers[-1].process, self._recipe, self._parts)

    def _tell(self, report: RoundReport | None) -> None:
        """Report to the observers the round of a worker, if one has come, and its report."""
        told, self._untold = self._untold, None
        if told is not None:
            for forward in told.forwards:
                self._watch.forward(*forward)
            for tokens in told.fed:
                self._watch.fed(*tokens)
            self._watch.spent(told.stages)
        if report is not None:
            self._watch.round(report)

    def close(self) -> None:
        """Have the workers forget the requests; they stay for the next run."""
        self._jobs.clear()
        self._keys.clear()
        if self._processes.run == self._run:
            self._processes.release()

    def _listen(self, patience: float | None) -> RoundReport | None:
        """Wait for a message, ``patience`` seconds at most, and return the report that comes of it."""
        try:
            heard = self._processes.listen(patience)
        except BaseException:  # a message may have been read in part
            self._processes.dismiss()
            raise
        if heard is None:
            return None
        return self._handled(next(worker for worker in self._workers if worker.process is heard[0]), heard[1])

    def _patience(self) -> float | None:
        """Seconds to wait for a worker: until the next request arrives, or None for as long as it takes."""
        following = self._queue.following
        left = math.inf if following is None else following - self._clock.now
        return left if 0 < left < math.inf else None

    def _dispatch(self) -> RoundReport | None:
        """Give workers what has arrived, and each a fair share; return the report of a request that cannot be given."""
        if not any(worker.jobs for worker in self._workers) and not self._queue.alone:
            following = self._queue.following
            if following is not None and following > self._clock.now:
                self._clock.jump(following)
        sent: dict[WorkerProcess, list[tuple[int, bytes]]] = {}
        try:
            while (found := self._next_request()) is not None:
                worker, job = found
                try:
                    data = m.packed(job.request, self._parts.tokenizer)
                except Exception as error:  # a user's processors and criteria may not be picklable
                    return self._failed(job, f"the request cannot go to a worker process: {sentence(error)}")
                worker.jobs[job.ticket], job.had = job, 0
                sent.setdefault(worker.process, []).append((job.ticket, data))
        finally:
            for worker in self._workers:
                if worker.process in sent:
                    worker.process.send(m.Add(sent[worker.process], self._room))
        return None

    def _next_request(self) -> tuple[Assignment, Job] | None:
        """Take the next request out of the queue, with the worker that is to have it, or None for none may be given now."""
        workers = sorted(
            (worker for worker in self._workers if worker.ready and not worker.reserved),
            key=lambda worker: len(worker.jobs),
        )
        if workers and self._queue.alone:
            least = workers.pop(0)  # it is given nothing until it has nothing
            if not least.jobs:
                return least, self._queue.alone.pop(0)
        job = self._queue.arrived(self._clock.now) if workers else None
        if job is None:
            return None
        alike = [
            worker for worker in workers if any(one.request.index == job.request.index for one in worker.jobs.values())
        ]
        worker = next((one for one in (*alike, *workers) if len(one.jobs) < self._window), None)
        return (worker, self._queue.take()) if worker else None

    def _handled(self, worker: Assignment, message: Any) -> RoundReport | None:
        """Return the report of what a worker sends, if it is one."""
        match message:
            case None:
                return self._replaced(worker)
            case m.Ready():
                worker.ready = True
            case m.Round():
                return self._round(worker, message)
            case m.Failed():
                return self._ended_by_error(worker, message)
            case m.Warned():
                warnings.warn(message.text, SpecframeWarning, stacklevel=2)
            case m.Broken():
                raise message.error
        return None

    def _round(self, worker: Assignment, told: m.Round) -> RoundReport | None:
        since = {name: spent - worker.stages.get(name, 0.0) for name, spent in told.stages.items()}
        worker.stages = told.stages or worker.stages
        self._untold = attrs.evolve(told, stages=since)
        worker.peak_kv_bytes = max(worker.peak_kv_bytes, told.peak_kv_bytes)
        self.peak_kv_bytes = sum(one.peak_kv_bytes for one in self._workers)
        worker.state_bytes = max(worker.state_bytes, told.state_bytes)
        self.state_bytes = sum(one.state_bytes for one in self._workers)
        report = report_of(told, self._jobs, next(self._numbers))
        for ended in told.ended:
            worker.jobs.pop(ended.ticket, None)
            if (job := self._jobs.get(ended.ticket)) is not None:
                self._drop(job)
        return report

    def _drop(self, job: Job) -> None:
        """Forget a request that has ended."""
        del self._jobs[job.ticket], self._keys[job.request.key]

    def _failed(self, job: Job, error: str) -> RoundReport:
        """End a request with an error, and return the report of it."""
        self._drop(job)
        return report_of_failure(job, next(self._numbers), error)

    def _ended_by_error(self, worker: Assignment, told: m.Failed) -> RoundReport | None:
        """End the request that an error is assigned to; of several, each is decoded again, by itself."""
        jobs = [worker.jobs.pop(ticket) for ticket in told.tickets if ticket in worker.jobs]
        if jobs and len(told.tickets) == 1:
            return self._failed(jobs[0], told.error)
        for job in jobs:
            job.alone = True
            self._queue.put(job)
        return None

    def _replaced(self, worker: Assignment) -> RoundReport | None:
        """Have another worker in place of one that has died, and its requests decoded again.

        A worker that died before it was ready had begun no request, so none is blamed.
        """
        fate, jobs, blamed = worker.process.fate, list(worker.jobs.values()), worker.ready
        worker.ready = False
        worker.process, worker.stages = self._processes.replace(worker.process), {}
        self._processes.open(worker.process, self._recipe, self._parts)
        worker.jobs.clear()
        report = None
        for job in jobs:
            job.deaths += blamed
            if blamed and job.alone and job.deaths >= MOST_DEATHS:
                report = self._failed(
                    job, f"{job.deaths} worker processes have died with this request, the last one {fate}"
                )
            else:
                job.alone = job.deaths >= MOST_DEATHS - 1
                self._queue.put(job)
        return report
