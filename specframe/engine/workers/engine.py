"""The engine of a process whose workers decode: it deals requests to them and reports their rounds as its own."""

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
from specframe.engine.parts import Parts
from specframe.engine.prompts import require_ids, taken
from specframe.engine.tolerated import installed_observers
from specframe.engine.workers import messages as m
from specframe.engine.workers.crew import Crew, Member
from specframe.engine.workers.jobs import Job, Queue, report_of, report_of_failure
from specframe.errors import PromptError, SpecframeWarning, sentence
from specframe.observe.stopwatch import ELSEWHERE
from specframe.observe.watch import Watch
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry

FALLS = 3
"""Workers that may die with a request. From the last but one on it has a worker to itself, so that it alone is blamed."""


@attrs.define(eq=False)
class Desk:
    """What one worker is at."""

    member: Member
    jobs: dict[int, Job] = attrs.Factory(dict)
    """The requests it has, by ticket."""
    ready: bool = False
    stages: dict[str, float] = attrs.Factory(dict)
    """The seconds of its stages, as far as observers have been told."""
    peak_kv_bytes: int = 0

    @property
    def reserved(self) -> bool:
        """Whether it may be given nothing else."""
        return any(job.alone for job in self.jobs.values())


@attrs.frozen
class Untold:
    """What observers are told of a worker's round before they are told of its report."""

    forwards: list[tuple[str, int, int]]
    """The model, the rows and the tokens of each forward."""
    fed: list[tuple[str, int, int]]
    """The model, the real tokens and the tokens computed in these forwards."""
    spent: dict[str, float]
    """Seconds of each stage since it was told of last."""


class DealingEngine:
    """Deals requests to workers, as many as they have rows for and a few more, and reports what comes back.

    A worker that dies is replaced, and its requests are decoded again. A request that workers keep dying with, or that raises an
    error, ends with an error; the others go on.

    Args:
        recipe: the options of the run.
        parts: the parts of this process.
        observers: told of every round and forward, before those that plugins install. What they see of a round has no logits.
        clock: tells when requests arrive.
        crew: the workers.
    """

    def __init__(self, recipe: Recipe, parts: Parts, observers: Rows[Observer], clock: Clock, crew: Crew) -> None:
        self.peak_kv_bytes = 0
        self._recipe, self._parts, self._clock, self._crew = recipe, parts, clock, crew
        self._watch = Watch([*observers, *installed_observers(registry())])
        self._jobs: dict[int, Job] = {}
        self._keys: dict[tuple[int, int], int] = {}
        """The ticket of each unfinished request, by its key."""
        self._queue = Queue()
        self._tickets, self._numbers = itertools.count(), itertools.count(1)
        self._room = 0
        self._late: BaseException | None = None
        """The error of an observer that was told of the latest round, which the next step raises."""
        self._untold: Untold | None = None
        """What observers have not been told of a worker's round."""
        rows = parts.composition.scheduler.rows(recipe.batch_size)
        self._window = rows + (rows + 1) // 2
        try:
            self._run = crew.begin(parts)
            self._desks = [Desk(member) for member in crew.members]
            self.elsewhere = rows * len(self._desks)
            for desk in self._desks:
                crew.open(desk.member, recipe, parts)
            while not all(desk.ready for desk in self._desks):
                self._listen(None)
        except BaseException:
            crew.dismiss()
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
        runner.group(request)
        if request.key in self._keys:
            raise PromptError(taken(request))
        limit = min(len(request.prompt_ids) + request.max_new_tokens, runner.context)
        job = Job(next(self._tickets), Sequence(request, limit))
        self._jobs[job.ticket], self._keys[request.key] = job, job.ticket
        self._queue.put(job)
        self._room = max(self._room, limit)

    def make_room(self, tokens: int) -> None:
        """Have workers open caches with room for sequences of ``tokens`` tokens."""
        self._room = max(self._room, tokens)

    def abort(self, key: tuple[int, int]) -> Sequence | None:
        """End a request that has not finished, and return its sequence with the tokens that were told of."""
        if (ticket := self._keys.get(key)) is None:
            return None
        job = self._jobs[ticket]
        self._drop(job)
        self._queue.drop(job)
        for desk in self._desks:
            if desk.jobs.pop(job.ticket, None):
                desk.member.send(m.Abort(job.ticket))
        job.sequence.token_ids = job.told
        job.sequence.finish("abort")
        return job.sequence

    def step(self) -> RoundReport | None:
        """Deal what has arrived, wait for a worker, and report its round; None: nothing new has come.

        Raises:
            SpecframeError: what a worker raises where no request is at fault, as one process would.
        """
        if self._late is not None:
            error, self._late = self._late, None
            raise error
        if self.idle:
            return None
        report = None
        try:
            with self._watch.stage(ELSEWHERE):
                report = self._deal() or self._listen(self._patience())
            self._tell(report)
        except BaseException as error:
            if report is None:
                raise
            self._late = error  # what has ended is reported first
        return report

    def _tell(self, report: RoundReport | None) -> None:
        """Tell the observers of the round of a worker, if one has come, and of its report."""
        told, self._untold = self._untold, None
        if told is not None:
            for forward in told.forwards:
                self._watch.forward(*forward)
            for tokens in told.fed:
                self._watch.fed(*tokens)
            self._watch.spent(told.spent)
        if report is not None:
            self._watch.round(report)

    def close(self) -> None:
        """Have the workers forget the requests; they stay for the next run."""
        self._jobs.clear()
        self._keys.clear()
        if self._crew.run == self._run:
            self._crew.release()

    def _listen(self, patience: float | None) -> RoundReport | None:
        """Wait for a message, so many seconds at most, and return the report that comes of it."""
        try:
            heard = self._crew.listen(patience)
        except BaseException:  # a message may have been read in part
            self._crew.dismiss()
            raise
        if heard is None:
            return None
        return self._taken(next(desk for desk in self._desks if desk.member is heard[0]), heard[1])

    def _patience(self) -> float | None:
        """Seconds to wait for a worker: until the next request arrives; None: as long as it takes."""
        following = self._queue.following
        left = math.inf if following is None else following - self._clock.now
        return left if 0 < left < math.inf else None

    def _deal(self) -> RoundReport | None:
        """Give workers what has arrived, and each a fair share; return the report of a request that cannot be given."""
        if not any(desk.jobs for desk in self._desks) and not self._queue.alone:
            following = self._queue.following
            if following is not None and following > self._clock.now:
                self._clock.jump(following)
        dealt: dict[Member, list[tuple[int, bytes]]] = {}
        try:
            while (found := self._next()) is not None:
                desk, job = found
                try:
                    data = m.packed(job.request, self._parts.tokenizer)
                except Exception as error:  # a user's processors and criteria may not be picklable
                    return self._failed(job, f"the request cannot go to a worker process: {sentence(error)}")
                desk.jobs[job.ticket], job.had = job, 0
                dealt.setdefault(desk.member, []).append((job.ticket, data))
        finally:
            for desk in self._desks:
                if desk.member in dealt:
                    desk.member.send(m.Add(dealt[desk.member], self._room))
        return None

    def _next(self) -> tuple[Desk, Job] | None:
        """Take the next request out of the queue, with the worker that is to have it; None: none may be given now."""
        desks = sorted((desk for desk in self._desks if not desk.reserved), key=lambda desk: len(desk.jobs))
        if desks and self._queue.alone:
            least = desks.pop(0)  # it is given nothing until it has nothing
            if not least.jobs:
                return least, self._queue.alone.pop(0)
        job = self._queue.arrived(self._clock.now) if desks else None
        if job is None:
            return None
        alike = [desk for desk in desks if any(one.request.index == job.request.index for one in desk.jobs.values())]
        desk = next((one for one in (*alike, *desks) if len(one.jobs) < self._window), None)
        return (desk, self._queue.take()) if desk else None

    def _taken(self, desk: Desk, message: Any) -> RoundReport | None:
        """Return the report of what a worker tells, if it is one."""
        match message:
            case None:
                return self._buried(desk)
            case m.Ready():
                desk.ready = True
            case m.Round():
                return self._round(desk, message)
            case m.Refused() if message.ticket in desk.jobs:
                return self._failed(desk.jobs.pop(message.ticket), message.error)
            case m.Failed():
                return self._blamed(desk, message)
            case m.Warned():
                warnings.warn(message.text, SpecframeWarning, stacklevel=2)
            case m.Broken():
                raise message.error
        return None

    def _round(self, desk: Desk, told: m.Round) -> RoundReport | None:
        since = {name: spent - desk.stages.get(name, 0.0) for name, spent in told.stages.items()}
        desk.stages = told.stages or desk.stages
        self._untold = Untold(told.forwards, told.fed, since)
        desk.peak_kv_bytes = max(desk.peak_kv_bytes, told.peak_kv_bytes)
        self.peak_kv_bytes = sum(one.peak_kv_bytes for one in self._desks)
        report = report_of(told, self._jobs, next(self._numbers))
        for ended in told.ended:
            desk.jobs.pop(ended.ticket, None)
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

    def _blamed(self, desk: Desk, told: m.Failed) -> RoundReport | None:
        """End the request that a round's error is laid to; of several, each is decoded again, by itself."""
        jobs = [desk.jobs.pop(ticket) for ticket in told.tickets if ticket in desk.jobs]
        if jobs and len(told.tickets) == 1:
            return self._failed(jobs[0], told.error)
        for job in jobs:
            job.alone = True
            self._queue.put(job)
        return None

    def _buried(self, desk: Desk) -> RoundReport | None:
        """Have another worker in the place of one that has died, and its requests decoded again.

        A worker that died before it was ready had begun no request, so none is blamed.
        """
        fate, jobs, blamed = desk.member.fate, list(desk.jobs.values()), desk.ready
        desk.ready = False
        desk.member, desk.stages = self._crew.replace(desk.member), {}
        self._crew.open(desk.member, self._recipe, self._parts)
        desk.jobs.clear()
        report = None
        for job in jobs:
            job.falls += blamed
            if blamed and job.alone and job.falls >= FALLS:
                report = self._failed(
                    job, f"{job.falls} worker processes have died with this request, the last one {fate}"
                )
            else:
                job.alone = job.falls >= FALLS - 1
                self._queue.put(job)
        return report
