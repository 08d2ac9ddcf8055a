"""The clocks of rounds: seconds for which another program had a thread's core do not count, seconds of waiting do."""

from __future__ import annotations

import itertools
import time
import types
from collections.abc import Callable, Iterator

import pytest
import torch
from specframe_std.policies import goodput, thread_clock
from specframe_std.policies.thread_clock import ClockReading, ThreadClock, clock_of, tells_waits
from specframe_testing import harness, zoo
from specframe_testing.device import kind as simulated_kind  # noqa: F401  # torch knows the device by it

counted = pytest.mark.skipif(not tells_waits(), reason="this system does not count the waits of one thread")


def passed(*readings: ClockReading) -> list[float]:
    """Return the seconds that a clock shows at each reading after the first."""
    left: Iterator[ClockReading] = iter(readings)
    clock = ThreadClock(lambda: next(left))
    return [clock() for _ in readings[1:]]


def test_seconds_of_waiting_count() -> None:
    """A thread that waited in between, for workers or a device, took all the seconds, since nobody tells the wait from the rest."""
    assert passed(ClockReading(10, 1, 7, 1), ClockReading(16, 3, 8, 1), ClockReading(19, 4, 8, 1)) == [6, 7]


def test_the_seconds_of_two_threads_are_not_compared() -> None:
    """A round that begins in one thread and ends in another takes the seconds of the wall clock."""
    assert passed(ClockReading(10, 50, 7, 1), ClockReading(16, 2, 7, 2), ClockReading(18, 3, 7, 2)) == [6, 7]


@pytest.mark.wide
@counted
def test_a_thread_that_sleeps_and_computes() -> None:
    """The counts of the system: sleeping counts whole, computing as much as the processor took."""
    began, clock = time.perf_counter(), ThreadClock()
    time.sleep(0.05)
    slept = clock()
    assert 0.05 <= slept <= time.perf_counter() - began
    began, before = time.perf_counter(), clock()
    computed = time.thread_time()
    while time.thread_time() < computed + 0.02:
        pass
    took = clock() - before
    assert 0.0199 <= took <= time.perf_counter() - began


def test_where_a_device_works_on_the_wall_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has the clock of a thread; a device with a queue, and a system that counts no waits, the wall clock."""
    assert isinstance(clock_of(torch.device("cpu")), ThreadClock) == tells_waits()
    assert clock_of(torch.device("sim")) is time.perf_counter
    monkeypatch.setattr(thread_clock, "tells_waits", lambda: False)
    assert clock_of(torch.device("cpu")) is time.perf_counter


@pytest.mark.wide(but=["counts1-False"])
@pytest.mark.parametrize(("counts", "told"), [((5, 6), True), ((5, 5), False)])
def test_a_count_that_never_changes_tells_nothing(
    counts: tuple[int, int], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits are counted where the count is higher after a short sleep."""
    left = iter(counts)
    monkeypatch.setattr(thread_clock, "reading", lambda: ClockReading(0, 0, next(left), 1))
    monkeypatch.setattr(thread_clock, "resource", types.SimpleNamespace(RUSAGE_THREAD=1))
    assert tells_waits.__wrapped__() == told
    monkeypatch.setattr(thread_clock, "resource", None)
    assert not tells_waits.__wrapped__()


def test_goodput_reads_the_clock_of_its_run_twice_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for the clock of the device on which the target computes, and times each round by it, from budget to acceptance."""
    devices, read = list[torch.device](), itertools.count()

    def given(device: torch.device) -> Callable[[], float]:
        devices.append(device)
        return lambda: float(next(read))

    monkeypatch.setattr(goodput, "clock_of", given)
    model = zoo.build("llama")
    pipe = harness.pipeline(model, model, draft_length="goodput,maximum=2")
    harness.check(pipe, harness.requests(harness.random_prompts([4, 6], zoo.VOCABULARY), 12))
    assert devices == [model.device]
    assert next(read) == 2 * pipe.report.rounds
