"""Requests that arrive over time: when they are seen, in which order, and how long they take."""

from __future__ import annotations

from pathlib import Path

import pytest
from specframe_lab.arrival_times import Process, arrival_times
from specframe_lab.comparison.comparison_observers import Waits
from specframe_testing import harness
from specframe_testing.fakes import fake_draft, fake_target

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.engine.engine_clock import HandClock
from specframe.errors import OptionError
from specframe.observe import stopwatch


class Seconds(Observer):
    """A clock on which every forward pass of the target takes one second, and a record of who was read when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.read: dict[int, float] = {}
        self.rows: list[int] = []

    def perf_counter(self) -> float:
        """A stand-in for ``time.perf_counter``."""
        return self.now

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Let a second pass."""
        self.now += model == "target"

    def round(self, report: RoundReport) -> None:
        """Note when a prompt has been read."""
        self.rows.append(len(report.sequences))
        if report.prefill:
            self.read.update({sequence.request.index: self.now for sequence in report.sequences})


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """Replace the clock that runs are timed with."""
    clock = Seconds()
    monkeypatch.setattr(stopwatch, "time", clock)
    return clock


def test_latency_counts_from_the_arrival_and_idle_time_takes_none(seconds: Seconds):
    pipe = harness.pipeline(fake_target(eos=60), batch_size=2, observers=[seconds])
    results = list(pipe.generate([[1, 2], [3, 4], [5, 6]], 3, arrivals=[0, 0, 10]))
    assert [result.latency for result in results] == [3, 3, 3]
    assert pipe.report.seconds == 6
    assert seconds.now == 6


def test_order_of_arrival_decides_who_is_first_and_results_keep_the_order_asked(seconds: Seconds):
    pipe = harness.pipeline(fake_target(eos=60), batch_size=1, observers=[seconds])
    results = list(pipe.generate([[1], [2], [3]], 2, arrivals=[0.3, 0.1, 0.2]))
    assert sorted(seconds.read, key=seconds.read.__getitem__) == [1, 2, 0]
    assert [result.index for result in results] == [0, 1, 2]


@pytest.mark.wide
@pytest.mark.parametrize(("window", "patience"), [(8, 1), (12, 4), (24, 16)])
@pytest.mark.parametrize("rate", [None, 0.5, 4.0])
def test_nobody_is_passed_over_for_longer_than_the_scheduler_promises(
    seconds: Seconds, window: int, patience: int, rate: float | None
):
    """With and without arrivals: at most patience + window / batch size rounds, rounded up."""
    target, waits = fake_target(), Waits()
    pipe = harness.pipeline(
        target,
        fake_draft(target),
        align="exspec",
        schedule=f"same-length,window={window},patience={patience}",
        batch_size=4,
        observers=[seconds, waits],
    )
    prompts = harness.random_prompts([1 + 7 * index % 11 for index in range(28)], 61)
    results = list(pipe.generate(prompts, 12, arrivals=rate and Process(rate).moments(28)))
    assert len(results) == 28
    assert waits.longest <= patience + -(-window // 4)


@pytest.mark.wide
def test_arrivals_from_a_file(tmp_path: Path):
    (tmp_path / "moments").write_text("0\n\n1.5\n 1.25 \n")
    assert arrival_times(str(tmp_path / "moments"), 3) == [0, 1.5, 1.25]


@pytest.mark.wide
@pytest.mark.parametrize(
    "given", ["poisson:0", "poisson:-1", "poisson:", "poisson:fast", "poisson:inf", "poisson:nan", "poisson:1e-300"]
)
def test_a_rate_that_is_none(given: str):
    with pytest.raises(
        OptionError, match="expected a rate of at least 1e-06 in requests per second, as in 'poisson:2', got"
    ):
        arrival_times(given, 3)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0\n1\n", r"holds 2 numbers: expected 3, one for each prompt$"),
        ("0\nsoon\n2\n", r"line 2: expected a number of seconds, got 'soon'$"),
        ("0\n-2\n1\n", r"holds -2.0: expected seconds from the start, 0 or more$"),
        (None, r"cannot be read: No such file or directory$"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, content: str | None, message: str):
    if content is not None:
        (tmp_path / "moments").write_text(content)
    with pytest.raises(OptionError, match=message):
        arrival_times(str(tmp_path / "moments"), 3)


def test_a_clock_never_goes_back() -> None:
    """A jump to a moment that has passed changes nothing."""
    clock = HandClock()
    clock.jump(5.0)
    clock.jump(3.0)
    assert clock.now == 5.0
