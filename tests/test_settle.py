"""Every round and every prefill chunk is committed: caches receive how many of the tokens they were fed they keep."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from specframe_std.alignments.eqspec import LeftPadded
from specframe_std.alignments.ragged import Ragged
from specframe_std.kv.ragged_layout import RaggedLayout
from specframe_testing import fakes, harness

from specframe.contracts.cache import KVStore
from specframe.contracts.round import Batch, Kept

TARGET = fakes.fake_target()


def batch_of(*lengths: int) -> Batch:
    """Return a batch of rows of these lengths."""
    asked = harness.requests(harness.random_prompts(lengths, 61))
    pool = harness.open_pool(asked)
    return pool.batch(pool.admit(len(asked)))


class Noting(RaggedLayout):
    """Notes what it commits, also of chains."""

    static = False
    told: list[tuple[list[int], list[int]]]

    def commit(self, batch: Batch, kept: Kept) -> None:
        """Note the rows' lengths and the kept tokens."""
        self.told.append((batch.lengths.tolist(), kept.host(batch).tolist()))
        super().commit(batch, kept)


class Told(Ragged):
    """Has such layouts, whose notes are lists of their own."""

    def __init__(self) -> None:
        self.layouts: list[Noting] = []

    def layout(self, store: KVStore, rows: int, capacity: int) -> RaggedLayout:
        """Return the layout of one cache; the first is the target's."""
        layout = Noting(store, rows, capacity)
        layout.told = []
        self.layouts.append(layout)
        return layout


@pytest.mark.wide(but=["None"])
@pytest.mark.parametrize("right", [0, 2, None])
def test_the_loop_settles_the_target_once_a_round(right: Any) -> None:
    """After each acceptance result the target's cache commits the rows' own tokens and the accepted ones, prompts included."""
    asked = harness.requests(harness.random_prompts([4, 1, 7], 61), 9)
    align, feeds = Told(), harness.Feeds()
    drafter = fakes.ScriptedDrafter(harness.truth(TARGET, asked), right)
    harness.check(harness.pipeline(TARGET, drafter, align=align, draft_length=3, observers=[feeds]), asked)
    reports = [one.report for one in feeds.rounds]
    expected = [
        (report.lengths.tolist(), (report.lengths + report.detail.host.accepted).tolist()) for report in reports
    ]
    assert align.layouts[0].told == expected
    assert any(report.prefill for report in reports)
    assert any(not report.prefill for report in reports)


def test_a_round_settled_at_once_is_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an alignment has committed in its commit is not committed again by the loop, and holds none of a round's tensors."""
    told = list[Kept]()
    commit = LeftPadded.commit

    def noted(self: LeftPadded, batch: Batch, kept: Kept) -> None:
        told.append(kept)
        commit(self, batch, kept)

    monkeypatch.setattr(LeftPadded, "commit", noted)
    asked, feeds = harness.requests(harness.random_prompts([4, 1, 7], 61), 9), harness.Feeds()
    drafter = fakes.ScriptedDrafter(harness.truth(TARGET, asked), 2)
    harness.check(harness.pipeline(TARGET, drafter, align="eqspec", draft_length=3, observers=[feeds]), asked)
    assert len(told) == len(feeds.rounds)
    run = harness.open_run(TARGET, 2, 20, align="eqspec")
    batch, kept = batch_of(5, 3), Kept(-1)
    run.target.commit(batch, kept)
    held = weakref.ref(kept)
    told.clear()
    del kept
    assert held() is None
