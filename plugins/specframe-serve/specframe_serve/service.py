"""The service: one thread owns an engine, and takes jobs from and gives chunks to the threads of clients."""

from __future__ import annotations

import contextlib
import hashlib
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import torch

from specframe import Pipeline
from specframe.contracts.engine import Engine
from specframe.contracts.requests import Chunk, FinishReason, Request, Result, SequenceMetrics
from specframe.contracts.roles import Observer
from specframe.engine.encoding import Prompt
from specframe.engine.result_factory import ResultFactory
from specframe.engine.stream_chunks import Chunks
from specframe.errors import sentence
from specframe.text.sampling import Sampling
from specframe_serve.scoring import Scores, prompt_scores

SEEDS = 2**32
"""Seeds that are the numbers of streams of random numbers; the further samples of a seed have numbers above these, below 2**46."""

LARGE, UNSEEDED = 2**62, -(2**62)
"""Where the streams of larger seeds begin, and those of jobs without a seed: neither meets a seed's below :data:`SEEDS`."""

STOPS = "the server stops"
"""The error of jobs that a stop ends, and of those that come after it."""

LAST_ROUND = 5.0
"""Seconds that a stop waits for the round under way: large models take less, and one that hangs must not hold up the end."""

Send = Callable[[Chunk], None]
"""Takes a chunk of a job; called from the service's thread."""


@attrs.frozen(eq=False)
class ServedRequest:
    """One prompt with its sampling parameters, and the receiver of its chunks."""

    prompt: Prompt
    sampling: Sampling
    max_new_tokens: int
    send: Send
    """Called with every chunk. The last chunk of each sample holds its result, whose ``index`` is always 0."""
    seed: int | None = None
    """Seed of the random numbers: prompt number ``seed`` of a run draws the same, below 2**32, or None: a stream of its own."""
    speculate: bool = True
    """Whether tokens may be drafted for it."""
    ignore_eos: bool = False
    """Whether it goes on after the target's end-of-sequence tokens."""
    echo: bool = False
    """Whether log-probabilities begin with those of the prompt's tokens; only with ``echo`` a job may ask for no new token."""


class BusyError(Exception):
    """The queue is full."""


class StoppedError(Exception):
    """The service takes no jobs any more."""


class Service:
    """Decodes jobs continuously, as they come, in one thread.

    Every sample of a job that was taken gets exactly one result, unless its client has left: whatever the engine raises, where it
    ends without a result, and where the service stops.

    Args:
        pipe: the models and the strategies.
        tokens: length of the longest sequence that the caches have room for from the start; a longer one makes them grow.
        waiting: sequences that may wait for a row; more are refused.
        observers: receive every round, in the service's thread.
        seed: what the streams of jobs without a seed follow from, or None if they are others in every service.
    """

    def __init__(
        self, pipe: Pipeline, tokens: int, waiting: int, observers: list[Observer], seed: int | None = None
    ) -> None:
        self._pipe, self._observers = pipe, observers
        self._seed = secrets.randbits(64) if seed is None else seed
        self._tokens = tokens
        self.most = pipe.batch_size + waiting
        """Sequences that may be decoded or wait at once."""
        self._changed = threading.Condition()
        """Guards what the threads of clients and the service's own share, which is what follows."""
        self._coming: dict[int, ServedRequest] = {}
        """Jobs that the engine has not been given, by number."""
        self._left: deque[int] = deque()
        """Numbers of jobs that the engine has been given and whose clients have left."""
        self._unfinished: dict[int, set[int]] = {}
        """The samples that have not ended, by job number."""
        self._numbers = 0
        self._deadline: float | None = None
        """When jobs under way end, on the monotonic clock, or None if the service does not stop."""
        self._jobs: dict[int, ServedRequest] = {}
        """Jobs that the engine has been given, by number."""
        self._scores: dict[int, Scores] = {}
        """The log-probabilities of prompts that are echoed, by the number of the job."""
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._run, name="specframe-engine", daemon=True)

    def start(self) -> None:
        """Begin to decode."""
        self._thread.start()

    def stop(self, grace: float) -> None:
        """Take no more jobs; those that have not finished ``grace`` seconds from now end with the reason "abort"."""
        with self._changed:
            self._deadline = min(self._deadline or math.inf, time.monotonic() + grace)
            self._changed.notify()

    def close(self) -> None:
        """Stop after the round under way; jobs that have not finished end with the reason "abort"."""
        self.stop(0)
        self._thread.join(LAST_ROUND)

    @property
    def alive(self) -> bool:
        """Whether jobs are taken."""
        return self._thread.is_alive() and self._deadline is None

    @property
    def unfinished(self) -> int:
        """Number of sequences that have not ended, with a row or without."""
        return sum(map(len, [*self._unfinished.values()]))

    def submit(self, jobs: list[ServedRequest]) -> list[int]:
        """Take jobs that belong to one request, all or none, and return their numbers.

        Raises:
            BusyError: as many sequences wait as may.
            StoppedError: the service stops.
        """
        with self._changed:
            if self._deadline is not None:
                raise StoppedError(STOPS)
            if self.unfinished + sum(job.sampling.samples for job in jobs) > self.most:
                raise BusyError(f"the queue is full: {self.unfinished} sequences are decoded or wait, {self.most} may")
            numbers = [*range(self._numbers, self._numbers + len(jobs))]
            self._numbers += len(jobs)
            for number, job in zip(numbers, jobs, strict=True):
                self._unfinished[number] = {*range(job.sampling.samples)}
                self._coming[number] = job
            self._changed.notify()
        return numbers

    def abort(self, numbers: list[int]) -> None:
        """End jobs whose client has left; those that have finished are not affected. No chunk of theirs follows."""
        with self._changed:
            for number in numbers:
                if self._coming.pop(number, None):
                    del self._unfinished[number]
                elif number in self._unfinished:
                    self._left.append(number)
            self._changed.notify()

    def _run(self) -> None:
        with torch.inference_mode():
            try:
                self._turn(self._opened)  # before the first job: worker processes take their time to begin
                while not self._over:
                    self._turn(self._round)
            finally:
                self._end()

    @property
    def _over(self) -> bool:
        """Whether nothing more is to be decoded."""
        return self._deadline is not None and (time.monotonic() >= self._deadline or not self._unfinished)

    def _turn(self, part: Callable[[], object]) -> None:
        """Do one thing; a fault in it ends what is under way, but not the service."""
        try:
            part()
        except (Exception, SystemExit) as error:  # an engine of a plugin may raise anything
            self._fail(sentence(error))

    def _round(self) -> None:
        """Carry out what clients have asked for, and decode a round."""
        with self._changed:
            self._changed.wait_for(lambda: self._coming or self._jobs or self._deadline is not None)
        self._take()
        if self._jobs and not self._over:
            self._step(self._opened())

    def _take(self) -> None:
        """Let the engine forget jobs whose clients have left, and give it those that have come, until the service stops.

        Who leaves is looked at before each job that comes: what was asked for and left must not keep others waiting.
        """
        while not self._over:
            with self._changed:
                left = [self._left.popleft() for _ in range(len(self._left))]
                number = next(iter(self._coming), None)
                if number is not None:
                    self._jobs[number] = self._coming.pop(number)
            for one in left:
                self._drop(one)
            if number is None:
                return
            self._begin(number)

    def _opened(self) -> Engine:
        """Return the engine, or a new one where there is none."""
        if self._engine is None:
            self._results = ResultFactory(self._pipe.tokenizer, self._pipe.parts.runner.device)
            self._chunks = Chunks(self._results)
            watching = [*self._results.observers, *self._pipe.recipe.observers, *self._observers]
            self._engine = self._pipe.executor.open(self._pipe.recipe, self._pipe.parts, watching, self._results.clock)
            self._engine.make_room(self._tokens)
        return self._engine

    def _step(self, engine: Engine) -> None:
        if (report := engine.step()) is not None:
            for chunk in self._chunks.of(report):
                self._send(chunk)
        if not self._jobs and not engine.idle:
            engine.step()  # it decodes nothing: an error of observers, say, that is not to reach the jobs to come
        if self._jobs and engine.idle:
            self._fail("the engine has ended without a result of this request")

    def _begin(self, number: int) -> None:
        """Hand a job's requests to the engine; one that cannot be decoded ends with an error."""
        engine, job = self._opened(), self._jobs[number]
        try:
            if job.echo and job.sampling.logprobs is not None:
                self._scores[number] = prompt_scores(self._pipe, self._pipe.encode(job.prompt), job.sampling.logprobs)
            if not job.max_new_tokens:
                self._end_at_once(number)
                return
            requests, failed = self._pipe.requests.make([job.prompt], job.max_new_tokens, sampling=job.sampling)
            if failed:
                self._refuse(number, str(failed[0].error))
            for request in requests:
                engine.add(self._named(request, number, job))
        except Exception as error:  # a tokenizer's or a processor's too: the other jobs go on
            self._drop(number, told=sentence(error))

    def _end_at_once(self, number: int) -> None:
        """End a job that asks for no new token."""
        logprobs = self._jobs[number].sampling.logprobs
        told: tuple[Any, Any] = (None, None) if logprobs is None else ([], [] if logprobs else None)
        for sample in sorted(self._unfinished[number]):
            result = Result(number, "", [], "length", SequenceMetrics(), None, 0, 0.0, sample, *told)
            self._send(Chunk(number, sample, "", [], result))

    def _named(self, request: Request, number: int, job: ServedRequest) -> Request:
        """Return a request under its job's number, arrived now, with its own stream of random numbers."""
        stops = frozenset[int]() if job.ignore_eos else request.stop_token_ids
        return attrs.evolve(
            request,
            index=number,
            stream=self._stream(number, job) + (request.sample << 32),
            arrival=self._results.clock.now,
            speculate=job.speculate,
            stop_token_ids=stops,
        )

    def _stream(self, number: int, job: ServedRequest) -> int:
        """Return the number of a job's stream of random numbers."""
        if job.seed is None:
            return UNSEEDED + hashed(f"{self._seed} {number}")
        return job.seed if job.seed < SEEDS else LARGE + hashed(str(job.seed))

    def _send(self, chunk: Chunk) -> None:
        """Give a chunk to its client, but for one whose sample has ended before."""
        number = chunk.index
        job = self._jobs.get(number)
        if job is None or chunk.sample not in self._unfinished[number]:
            return
        result = chunk.result and self._echoed(number, attrs.evolve(chunk.result, index=0))
        if result:  # first: a client that has its last token does not find it among the unfinished
            self._ended(number, chunk.sample)
        job.send(attrs.evolve(chunk, index=0, result=result))

    def _echoed(self, number: int, result: Result) -> Result:
        """Return a result with the log-probabilities of its prompt before its own, where they are asked for."""
        if number not in self._scores or result.logprobs is None:
            return result
        told, tops = self._scores[number]
        first: Any = told  # the first token has none
        both: Any = None if result.top_logprobs is None else [*tops, *result.top_logprobs]
        return attrs.evolve(result, logprobs=[*first, *result.logprobs], top_logprobs=both)

    def _ended(self, number: int, sample: int) -> None:
        """Note that a sample of a job has ended; after the last one forget the job."""
        with self._changed:
            self._unfinished[number].discard(sample)
            if not self._unfinished[number]:
                del self._unfinished[number], self._jobs[number]
                self._scores.pop(number, None)

    def _refuse(self, number: int, error: str, reason: FinishReason = "error") -> None:
        """End every sample of a job that has not ended, with an error."""
        for sample in sorted(self._unfinished.get(number, ())):
            result = Result(number, "", [], reason, SequenceMetrics(), error, sample=sample)
            self._send(Chunk(number, sample, "", [], result))

    def _drop(self, number: int, told: str | None = None) -> None:
        """End a job's sequences and forget it; ``told`` is the error that its client receives."""
        if number not in self._jobs:
            return
        for sample in sorted(self._unfinished[number]):
            if self._engine and (ended := self._engine.abort((number, sample))) is not None:
                self._chunks.forget(ended)
        if told:
            self._refuse(number, told)
        with self._changed:
            self._jobs.pop(number, None)
            self._unfinished.pop(number, None)
            self._scores.pop(number, None)

    def _fail(self, error: str) -> None:
        """End everything under way, through no fault of the requests; the next job has another engine."""
        for number in [*self._jobs]:
            self._refuse(number, error, "abort")
        engine, self._engine = self._engine, None
        if engine:
            with contextlib.suppress(Exception, SystemExit):  # it has failed already, and clients have the error
                engine.close()

    def _end(self) -> None:
        """End all jobs, and take none any more."""
        self.stop(0)
        with self._changed:
            self._jobs |= self._coming
            self._coming.clear()
        self._fail(STOPS)


def hashed(text: str) -> int:
    """Return a number of 61 bits that follows from a text: with those of samples above it a stream's number has 63."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 3
