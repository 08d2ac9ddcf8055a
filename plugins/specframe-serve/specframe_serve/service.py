"""The service: one thread owns an engine, and takes jobs from and gives chunks to the threads of clients."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import attrs
import torch

from specframe import Pipeline
from specframe.contracts.engine import Engine
from specframe.contracts.requests import Chunk, Request, Result, SequenceMetrics
from specframe.contracts.roles import Observer
from specframe.engine.chunks import Chunks
from specframe.engine.prompts import Prompt
from specframe.engine.results import Results
from specframe.errors import sentence
from specframe.text.sampling import Sampling

SEEDS = 2**32
"""Streams of random numbers that requests may choose from by their seed; a stream's further samples have numbers above these."""

Send = Callable[[Chunk], None]
"""Takes a chunk of a job; called from the service's thread."""


@attrs.frozen(eq=False)
class Job:
    """One prompt with its sampling parameters, and the receiver of its chunks."""

    prompt: Prompt
    sampling: Sampling
    max_new_tokens: int
    send: Send
    """Called with every chunk. The last chunk of each sample holds its result, whose ``index`` is always 0."""
    seed: int | None = None
    """Number of the stream of random numbers: prompt number ``seed`` of a run draws the same. None: a stream of its own."""
    speculate: bool = True
    """Whether tokens may be drafted for it."""


class BusyError(Exception):
    """The queue is full."""


class Service:
    """Decodes jobs continuously, as they come, in one thread.

    Args:
        pipe: the models and the strategies.
        tokens: length of the longest sequence that the caches have room for from the start; a longer one makes them grow.
        waiting: sequences that may wait for a row; more are refused.
        observers: told about every round, in the service's thread.
    """

    def __init__(self, pipe: Pipeline, tokens: int, waiting: int, observers: list[Observer]) -> None:
        self._pipe, self._observers = pipe, observers
        self._tokens = tokens
        self._most = pipe.batch_size + waiting
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._jobs: dict[int, Job] = {}
        self._unfinished: dict[int, set[int]] = {}
        """The samples that have not ended, by job number."""
        self._numbers, self._lock, self._closed = 0, threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name="specframe-engine", daemon=True)

    def start(self) -> None:
        """Begin to decode."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the round under way; jobs that have not finished end with the reason "abort"."""
        self._closed = True
        self._commands.put(lambda: None)
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def unfinished(self) -> int:
        """Number of sequences that have not ended, with a row or without."""
        return sum(map(len, [*self._unfinished.values()]))

    def submit(self, jobs: list[Job]) -> list[int]:
        """Take jobs that belong to one request, all or none, and return their numbers.

        Raises:
            BusyError: as many sequences wait as may.
        """
        with self._lock:
            coming = sum(job.sampling.samples for job in jobs)
            if self.unfinished and self.unfinished + coming > self._most:
                raise BusyError(f"the queue is full: {self.unfinished} sequences are decoded or wait, {self._most} may")
            numbers = [*range(self._numbers, self._numbers + len(jobs))]
            self._numbers += len(jobs)
            for number, job in zip(numbers, jobs, strict=True):
                self._unfinished[number] = {*range(job.sampling.samples)}
        for number, job in zip(numbers, jobs, strict=True):
            self._commands.put(lambda number=number, job=job: self._begin(number, job))  # type: ignore[misc]
        return numbers

    def abort(self, numbers: list[int]) -> None:
        """End jobs whose client has left; those that have finished are not affected. No chunk of theirs follows."""
        for number in numbers:
            self._commands.put(lambda number=number: self._drop(number))  # type: ignore[misc]

    def _run(self) -> None:
        with torch.inference_mode():
            self._open()
            while not self._closed:
                try:
                    self._take(wait=self._engine.idle)
                    self._step()
                except Exception as error:  # a fault of one round must not end the service
                    self._fail(sentence(error))
            self._fail("the server stops")

    def _open(self) -> None:
        """Open an engine with nothing in it."""
        self._results = Results(self._pipe.tokenizer, self._pipe.parts.runner.device)
        self._chunks = Chunks(self._results)
        watching = [*self._results.observers, *self._pipe.recipe.observers, *self._observers]
        self._engine: Engine = self._pipe.executor.open(
            self._pipe.recipe, self._pipe.parts, watching, self._results.clock
        )
        self._engine.make_room(self._tokens)

    def _take(self, wait: bool) -> None:
        """Carry out what clients have asked for; ``wait``: until there is something."""
        if wait:
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()

    def _step(self) -> None:
        if (report := self._engine.step()) is None:
            return
        for chunk in self._chunks.of(report):
            self._send(chunk)

    def _begin(self, number: int, job: Job) -> None:
        """Hand a job's requests to the engine; one that cannot be decoded ends with an error."""
        self._jobs[number] = job
        try:
            requests, failed = self._pipe.requests.make([job.prompt], job.max_new_tokens, None, False, job.sampling)
            if failed:
                self._refuse(number, str(failed[0].error))
            for request in requests:
                self._engine.add(self._named(request, number, job))
        except Exception as error:  # a tokenizer's or a processor's too: the other jobs go on
            self._drop(number, told=sentence(error))

    def _named(self, request: Request, number: int, job: Job) -> Request:
        """Return a request under its job's number, arrived now, with its own stream of random numbers."""
        first = number if job.seed is None else job.seed
        stream = first % SEEDS + (request.sample << 32)
        return attrs.evolve(
            request, index=number, stream=stream, arrival=self._results.clock.now, speculate=job.speculate
        )

    def _send(self, chunk: Chunk) -> None:
        number = chunk.index
        if (job := self._jobs.get(number)) is None:
            return
        result = chunk.result and attrs.evolve(chunk.result, index=0)
        if result:
            self._ended(
                number, chunk.sample
            )  # first: a client that has its last token does not find it among the unfinished
        job.send(attrs.evolve(chunk, index=0, result=result))

    def _ended(self, number: int, sample: int) -> None:
        """Note that a sample of a job has ended; after the last one forget the job."""
        with self._lock:
            self._unfinished[number].discard(sample)
            if not self._unfinished[number]:
                del self._unfinished[number], self._jobs[number]

    def _refuse(self, number: int, error: str, reason: str = "error") -> None:
        """End every sample of a job that has not ended, with an error."""
        for sample in sorted(self._unfinished.get(number, ())):
            result = Result(number, "", [], reason, SequenceMetrics(), error, sample=sample)  # type: ignore[arg-type]
            self._send(Chunk(number, sample, "", [], result))

    def _drop(self, number: int, told: str | None = None) -> None:
        """End a job's sequences and forget it; ``told``: the error that its client is told."""
        if number not in self._jobs:
            return
        for sample in sorted(self._unfinished.get(number, ())):
            if (ended := self._engine.abort((number, sample))) is not None:
                self._chunks.forget(ended)
        if told:
            self._refuse(number, told)
        with self._lock:
            self._jobs.pop(number, None)
            self._unfinished.pop(number, None)

    def _fail(self, error: str) -> None:
        """End everything under way, through no fault of the requests, and open an engine anew."""
        for number in [*self._jobs]:
            self._refuse(number, error, "abort")
        self._engine.close()
        if not self._closed:
            self._open()
