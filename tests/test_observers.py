"""Figures and the clock."""

from __future__ import annotations

import pytest
import torch
from specframe_testing import fakes, harness

from specframe.observe import stopwatch
from specframe.observe.counts import Counts, run_report
from specframe.observe.stopwatch import Stopwatch
from specframe.observe.watch import Watch

TARGET = fakes.fake_target()


@pytest.fixture
def clock(monkeypatch):
    """Return a stopwatch and a function that lets time pass for it."""
    now = [0.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now[0])

    def passes(seconds):
        now[0] += seconds

    return Stopwatch(torch.device("cpu")), passes


def test_inner_stage_interrupts_the_outer(clock):
    """Time inside a nested stage is the inner stage's, before and after it the outer's."""
    stopwatch, passes = clock
    watch = Watch([stopwatch])
    with watch.stage("draft"):
        passes(1)
        with watch.stage("align"):
            passes(10)
        passes(100)
        with watch.stage("align"):
            passes(1000)
    with watch.stage("verify"):
        passes(10000)
    assert stopwatch.stages() == {"draft": 101, "align": 1010, "verify": 10000}


def report_of(draft, asked, **options):
    """Decode and return the run's report and results."""
    feeds = harness.Feeds()
    pipe = harness.pipeline(TARGET, draft, observers=[feeds], **options)
    return harness.check(pipe, asked), pipe.report, feeds


@pytest.mark.wide
def test_figures_of_a_known_run():
    """With drafts that are half right every figure is known beforehand."""
    asked = harness.requests(harness.random_prompts((4, 4), 61), 7)
    drafter = fakes.right_for(2, harness.truth(TARGET, asked))
    results, report, _ = report_of(drafter, asked, batch_size=2, draft_length=4)
    assert report.sequences == 2
    assert report.tokens == 14
    assert report.rounds == 2
    assert report.num_spec_steps == 4
    assert report.num_draft_tokens == 2 * (4 + 2)
    assert report.num_accepted_draft_tokens == 2 * (2 + 2)
    assert report.acceptance_histogram == {2: 4}
    assert report.mean_acceptance_length == 3
    assert report.draft_acceptance_rate == pytest.approx(8 / 12)
    assert report.grouping_rate == 1
    assert report.padding_share == 0
    assert report.target_forwards == 3
    assert report.draft_forwards == 0
    assert [result.metrics.num_spec_steps for result in results] == [2, 2]


def test_acceptance_at_each_place() -> None:
    """Of six rounds one accepted nothing, two one token and three three: five accepted the first token, three the others."""
    counts = Counts(torch.device("cpu"))
    counts.total.acceptance_histogram = {0: 1, 3: 3, 1: 2}
    figures = run_report(counts, Stopwatch(torch.device("cpu")), 0, 0)
    assert figures.acceptance_per_position == [5 / 6, 3 / 6, 3 / 6]
