"""Figures and the clock; and the share of padding: tokens that were computed and meant nothing, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specframe_std.drafters.prompt_lookup import PromptLookup
from specframe_testing import fakes, harness, zoo
from turns import ByTurns

from specframe.contracts.drafts import Block
from specframe.contracts.roles import Observer
from specframe.observe import stopwatch
from specframe.observe.counts import Counts, PaddingCounts, run_report
from specframe.observe.stopwatch import Stopwatch
from specframe.observe.watch import Watch
from specframe.pipeline import Pipeline

LENGTHS = (4, 10, 7)
ASKED = harness.requests(harness.random_prompts(LENGTHS, zoo.VOCABULARY), [9, 14, 21])


def decoded(target: Any, draft: Any, **options: Any) -> tuple[Pipeline, harness.Feeds, PaddingCounts]:
    """Return a pipeline that has decoded the requests, what its forwards were fed, and the tokens that were counted."""
    feeds, filler = harness.Feeds(), PaddingCounts()
    pipe = harness.pipeline(target, draft, batch_size=3, observers=[feeds, filler], **options)
    harness.check(pipe, ASKED)
    return pipe, feeds, filler


def meant(feeds: harness.Feeds) -> int:
    """Return the target's tokens that meant something: prompts, the last token of each row in each round, what was drafted."""
    return sum(LENGTHS) + sum(one.rows + int(one.report.drafted.sum()) for one in feeds.decoding)


def test_what_a_drafter_counts_on_the_device() -> None:
    """Nodes that a drafter says are padding once they were fed count as padding, and never as drafted."""
    pipe, feeds, filler = decoded(zoo.build("qwen3"), None, drafter=PromptLookup(), draft_length=4)
    assert filler.real["target"] == meant(feeds)
    assert pipe.report.filler_share > 0.3
    assert pipe.report.num_draft_tokens == sum(int(one.report.drafted.sum()) for one in feeds.decoding)


class Told(Observer):
    """Keeps the reported tokens."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int, int]] = []

    def fed(self, model: str, real: int, computed: int) -> None:
        """Keep it."""
        self.all.append((model, real, computed))


def test_a_draft_model_reads_what_each_row_has_missed() -> None:
    """After rounds without a draft the prompts of rows that came meanwhile are read, and of others the tokens of those rounds."""
    target, told, feeds = zoo.build("qwen3"), Told(), harness.Feeds()
    asked = harness.requests(harness.random_prompts((60, 20, 50), zoo.VOCABULARY), [25, 70, 30])
    pausing = ByTurns(3, 3, *[0] * 37, *[3] * 99)
    pipe = harness.pipeline(target, target, batch_size=2, observers=[told, feeds], draft_length=pausing)
    harness.check(pipe, asked)
    reads = [computed for model, _, computed in told.all if model == "draft" and computed > 2 * 2]
    came, stayed = feeds.decoding[39].report.lengths
    assert came > 50
    assert stayed == 20 + 1 + 2 * 4 + 37
    assert reads == [60 + 1 - 2 + 20 + 1 - 2, came - 2 + 37 + 2 - 2], (
        "nor were the last token of the draft before and its bonus read"
    )


def test_a_recorded_bucket() -> None:
    """A recording of a forward computes the rows and tokens of its bucket; the first of a shape is none."""
    told = Told()
    run, pool = harness.open_run(zoo.build("qwen3"), 4, 40, align="ragged"), harness.open_pool(ASKED)
    run.watch, run.graphs = Watch([told]), "on"
    cached, batch = run.open_cache(run.runner), pool.batch(pool.admit(3))
    cached.read(batch, left=1)
    block = Block(torch.tensor(harness.random_prompts((5, 5, 5), zoo.VOCABULARY)), -1)
    for _ in range(2):
        cached.feed(batch, block, keep=5)
    assert told.all == [("target", *numbers) for numbers in ((18, 18), (15, 15), (15, 32))]


FAKE = fakes.fake_target()


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
    pipe = harness.pipeline(FAKE, draft, observers=[feeds], **options)
    return harness.check(pipe, asked), pipe.report, feeds


@pytest.mark.wide
def test_figures_of_a_known_run():
    """With drafts that are half right every figure is known beforehand."""
    asked = harness.requests(harness.random_prompts((4, 4), 61), 7)
    drafter = fakes.right_for(2, harness.truth(FAKE, asked))
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
