"""The service on fakes: every sample of a job gets one result, whatever the engine does, and a stop takes a limited time."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from specframe_serve.metrics import Metrics
from specframe_serve.service import STOPS, BusyError, ServedRequest, Service, StoppedError
from specframe_testing import fakes, harness

from specframe.contracts.requests import Chunk, Result
from specframe.contracts.roles import Observer
from specframe.engine.local_engine import LocalEngine
from specframe.text.sampling import Sampling

TARGET = fakes.fake_target()
PROMPT, NEW = [7, 3, 11], 6
LATEST = 20
"""Seconds after which a result is missed: it comes in milliseconds, or never."""


class Faults:
    """An executor whose engines fail.

    Args:
        planted: what calls raise, by member, "open" among them: the first call the first error, and so on.
    """

    def __init__(self, **planted: list[BaseException]) -> None:
        self.planted = planted
        self.gate = threading.Semaphore(10**6)
        """Steps that engines may take."""
        self.engines: list[FailingEngine] = []

    offers = frozenset[str]()

    def open(self, recipe: Any, parts: Any, observers: Any, clock: Any) -> Any:
        self.call("open")
        self.engines.append(FailingEngine(LocalEngine(recipe, parts, observers, clock, self), self))
        return self.engines[-1]

    def broadcast(self, value: Any) -> Any:
        return value

    def call(self, member: str) -> None:
        if errors := self.planted.get(member):
            raise errors.pop(0)


class FailingEngine:
    """An engine whose calls fail as planted."""

    def __init__(self, inner: LocalEngine, faults: Faults) -> None:
        self.inner, self._faults = inner, faults
        self.keys: list[Any] = []
        """Of the requests that it was given."""
        self.streams: list[int] = []
        """Their streams of random numbers."""

    def __getattr__(self, member: str) -> Any:
        found = getattr(self.inner, member)
        return (lambda *given: (self._faults.call(member), found(*given))[1]) if callable(found) else found

    @property
    def idle(self) -> bool:
        if self.keys:  # before, it is only looked whether there is such a member
            self._faults.call("idle")
        return self.inner.idle

    def add(self, request: Any) -> None:
        self._faults.call("add")
        self.keys.append(request.key)
        self.streams.append(request.stream)
        self.inner.add(request)

    def step(self) -> Any:
        assert self._faults.gate.acquire(timeout=LATEST)
        self._faults.call("step")
        return self.inner.step()


class Forgetful(Faults):
    """An executor whose engine forgets what is under way in its first step, without a report."""

    def call(self, member: str) -> None:
        if member == "step" and not self.planted:
            self.planted["forgotten"] = []
            for key in self.engines[0].keys:
                self.engines[0].inner.abort(key)


class Client:
    """Receives the chunks of one job."""

    def __init__(self, samples: int = 1, prompt: Any = PROMPT, new: int = NEW, seed: int | None = None) -> None:
        self.chunks: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
        self.job = ServedRequest(prompt, Sampling(samples=samples), new, self.chunks.put, seed, ignore_eos=True)

    def result(self) -> Result:
        """Return the next result; fail where none comes."""
        while (chunk := self.chunks.get(timeout=LATEST)).result is None:
            pass
        return chunk.result


@pytest.fixture
def serving() -> Iterator[Callable[..., Service]]:
    """A function that returns a started service with rows for two sequences, which ends after the test."""
    with contextlib.ExitStack() as services:

        def start(executor: Any = "local", waiting: int = 8, observers: Any = (), seed: int | None = None) -> Service:
            pipe = harness.pipeline(TARGET, executor=executor, batch_size=2)
            service = Service(pipe, 32, waiting, [*observers], seed)
            service.start()
            services.callback(service.close)
            return service

        yield start


def decodes(service: Service) -> bool:
    """Return whether a further job gets its tokens."""
    client = Client()
    service.submit([client.job])
    return client.result().token_ids == harness.continuation(TARGET, PROMPT, NEW)


ERRORS = (RuntimeError, torch.OutOfMemoryError, SystemExit)


@pytest.mark.wide(but=["idle-SystemExit"])
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("member", ["open", "make_room", "add", "step", "idle"])
def test_every_sample_gets_one_result_where_a_call_of_the_engine_fails(serving, member, kind):
    """A call of the engine that raises ends each sample with an error that says so, and the next job has its tokens."""
    error = kind("planted")
    service = serving(Faults(**{member: [error] * (2 if member in ("open", "make_room") else 1)}))  # once without a job
    client = Client(samples=2)
    service.submit([client.job])
    results = [client.result(), client.result()]
    assert {one.sample for one in results} == {0, 1}
    assert all(one.finish_reason in ("abort", "error") and "planted" in str(one.error) for one in results)
    assert decodes(service)
    assert client.chunks.empty()
    assert service.unfinished == 0


@pytest.mark.wide
def test_an_engine_that_loses_requests_leaves_nobody_waiting(serving):
    """A request that the engine has forgotten without a report ends with an error."""
    service, client = serving(Forgetful()), Client()
    service.submit([client.job])
    assert client.result().error == "the engine has ended without a result of this request"
    assert decodes(service)


def test_aborts_are_carried_out_between_jobs_that_come(serving, monkeypatch):
    """While one job after the other is given to the engine, who leaves is looked at first, and so is a stop."""
    service = serving()
    make, made = service._pipe.requests.make, []

    def slow(*given: Any, **asked: Any) -> Any:
        made.append(given[0])
        if len(made) == 1:
            service.abort([1, 2])
        if len(made) == 2:
            service.stop(0)
        return make(*given, **asked)

    monkeypatch.setattr(service._pipe.requests, "make", slow)
    clients = [Client(prompt=[number + 1]) for number in range(6)]
    service.submit([client.job for client in clients])
    assert clients[5].result().error == STOPS
    assert made == [[[1]], [[4]]]


def test_a_job_that_comes_while_the_service_ends_is_not_lost(serving, monkeypatch):
    """Whatever ends the service's thread, those that wait receive an error, and those that come are refused."""
    service, client = serving(), Client()

    def ends(*_: Any) -> None:
        raise KeyboardInterrupt  # nothing that a turn of the service outlives

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(service, "_take", ends)
    service.submit([client.job])
    assert client.result().error == STOPS
    with pytest.raises(StoppedError):
        service.submit([client.job])


def test_more_sequences_than_may_wait_are_refused_on_an_idle_service_too(serving):
    """The bound holds for one request alone: none of its jobs is taken."""
    service = serving(waiting=2)
    with pytest.raises(BusyError, match="0 sequences are decoded or wait, 4 may"):
        service.submit([Client(samples=3).job, Client(samples=2).job])
    assert service.unfinished == 0
    service.submit([Client(samples=4).job])


class Loud(Observer):
    """An observer that raises in the first round that ends a sequence."""

    quiet = False

    def round(self, report):
        if report.finished and not self.quiet:
            self.quiet = True
            raise ValueError("planted")


def test_an_observers_error_after_the_last_result_does_not_reach_the_next_job(serving):
    """A job whose round an observer fails in has its tokens, and so has the job that comes next."""
    service = serving(observers=[Loud()])
    assert decodes(service)
    assert decodes(service)


def test_no_two_jobs_draw_the_same_unless_they_have_one_seed(serving):
    """A stream is a job's own in all servers where it has no seed, and follows from the seed alone where it has one."""
    seeds = [None, None, 0, 1, 2**32, 2**32 + 1, 2**63, 10**30]

    def streams(own: int | None) -> list[int]:
        faults = Faults()
        service = serving(faults, seed=own)
        for seed in seeds:
            client = Client(samples=2, new=1, seed=seed)
            service.submit([client.job])
            assert not [one.error for one in (client.result(), client.result()) if one.error]
        return faults.engines[0].streams

    first, second, *chosen = streams(None), streams(None), streams(7), streams(7), streams(8)
    assert first[4:8] == [0, 1 << 32, 1, 1 + (1 << 32)]
    assert {tuple(one[4:]) for one in (first, second, *chosen)} == {tuple(first[4:])}
    assert chosen[0] == chosen[1]
    unseeded = [stream for one in (first, second, *chosen[1:]) for stream in one[:4]]
    assert len({*unseeded, *first[4:]}) == 4 * 4 + 12


def test_tokens_that_were_cached_are_counted() -> None:
    """What later prompts find in blocks of earlier ones is a figure of its own."""
    metrics = Metrics("fake")
    pipe = harness.pipeline(TARGET, None, kv="paged,block=4,share=on", batch_size=2, observers=[metrics])
    beginning = harness.random_prompts([14], 61)[0]
    harness.check(pipe, harness.requests([[*beginning, 5], [*beginning, 6], [3]], 4))
    assert 'vllm:prefix_cache_hits_total{model_name="fake"} 12.0' in metrics.text().decode().splitlines()
