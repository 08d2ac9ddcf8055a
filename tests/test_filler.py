"""The share of padding: tokens that were computed and meant nothing, compared with counts by hand."""

from __future__ import annotations

from typing import Any

import torch
from specframe_std.drafters.prompt_lookup import PromptLookup
from specframe_testing import harness, zoo
from turns import ByTurns

from specframe.contracts.drafts import Block
from specframe.contracts.roles import Observer
from specframe.observe.counts import PaddingCounts
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
