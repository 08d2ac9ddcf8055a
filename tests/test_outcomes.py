"""What drafters and caches receive of a round: the rows after it and before, who has ended, and what is kept."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from planting import noting, opened
from specframe_std.alignments.eqspec import LeftPadded
from specframe_std.alignments.ragged import Ragged
from specframe_std.kv.ragged_layout import RaggedLayout
from specframe_testing import fakes, harness

from specframe.contracts.cache import KVStore
from specframe.contracts.reports import Outcome
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch, Kept, Sequence
from specframe.engine.local_engine import LocalEngine

TARGET = fakes.fake_target()
PROMPTS = harness.random_prompts((6, 1, 9, 4, 13, 2), 61, seed=5)
ASKED = harness.requests(PROMPTS, [12, 3, 9, 1, 14, 8], {7, 11})
TURNS = {0: 4, 1: 0, 2: 2, 3: 1, 4: 3, 5: 4, 6: 2}
"""How many tokens of a draft are right, by request."""


class Listening(fakes.ScriptedDrafter):
    """A scripted drafter that keeps what it receives, over all runs."""

    def __init__(self, asked: list[Request] = ASKED, fails_at: int = 0) -> None:
        super().__init__(harness.truth(TARGET, asked), TURNS)
        self.outcomes, self.ended, self.starts, self._fails_at = 0, list[Sequence](), 0, fails_at
        self.gains = list[list[int]]()

    def start(self, run: Any) -> None:
        """Count the runs."""
        super().start(run)
        self.starts += 1

    def observe(self, outcome: Outcome) -> None:
        """Hold the rows against the target's own tokens."""
        self.outcomes += 1
        if self.outcomes == self._fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        batch, before = outcome.batch, outcome.before
        assert before.sequences is batch.sequences
        assert before.lengths_B.tolist() == before.lengths.tolist() == outcome.lengths.tolist()
        for row, sequence in enumerate(batch.sequences):
            length, prompt = int(batch.lengths[row]), sequence.request.prompt_ids
            own = [*prompt, *self.truth[sequence.request.index]]
            assert batch.tokens[row, :length].tolist() == own[:length]
            assert batch.tokens_BS[row, :length].tolist() == own[:length]
            assert before.last_tokens(1)[row].tolist() == own[outcome.lengths[row] - 1 : outcome.lengths[row]]
            assert sequence.finished == (sequence in outcome.ended)
            if sequence.finished:
                assert sequence.token_ids == own[len(prompt) : length]
        if outcome.acceptance is not None:
            self.gains.append((batch.lengths - outcome.lengths).tolist())
            most = outcome.acceptance.accepted_B.numpy() + 1
            assert (batch.lengths - outcome.lengths <= most).all()
            assert (batch.lengths - outcome.lengths == most)[[not one.finished for one in batch.sequences]].all()
        else:
            assert batch.lengths.tolist() == outcome.lengths.tolist()
        self.ended += outcome.ended


class Reading(Listening):
    """Keeps the places of the prompts' tokens that it receives."""

    def start(self, run: Any) -> None:
        """Begin without any."""
        super().start(run)
        self.places: dict[int, list[int]] = {}

    def observe(self, outcome: Outcome) -> None:
        """Note what was read of each prompt."""
        super().observe(outcome)
        batch = outcome.before
        for row, sequence in enumerate(batch.sequences if batch.uncached_rows is not None else ()):
            length = len(sequence.request.prompt_ids)
            read = range(
                length - int(batch.uncached_rows[row]), length - min(batch.left, int(batch.uncached_rows[row]))
            )
            self.places.setdefault(sequence.request.index, []).extend(read)


@pytest.mark.wide(but=["continuous,piece=4,mixed=on"])
@pytest.mark.parametrize(
    "schedule", ["continuous", "continuous,piece=4", "continuous,piece=4,mixed=on", "continuous,piece=3,mixed=on"]
)
def test_every_token_of_a_prompt_is_told_once(schedule: str) -> None:
    """Prompts that are read at once, in chunks between rounds and in mixed batches are reported to their end."""
    drafter = Reading()
    harness.check(harness.pipeline(TARGET, drafter, batch_size=2, draft_length=4, schedule=schedule), ASKED)
    assert drafter.places == {index: [*range(len(prompt))] for index, prompt in enumerate(PROMPTS)}


def engine_of(drafter: Any, asked: list[Request]) -> LocalEngine:
    """Return an engine that has taken requests."""
    pipe = harness.pipeline(TARGET, drafter, batch_size=3, draft_length=4)
    return opened(pipe, asked)


def test_aborts_are_told_with_the_next_outcome() -> None:
    """A sequence that had a row and was aborted has ended; a request that waited for one was never heard of."""
    drafter = Listening()
    engine = engine_of(drafter, ASKED)
    for _ in range(2):
        engine.step()
    told = len(drafter.ended)
    assert engine.abort(ASKED[0].key)
    assert engine.abort(ASKED[5].key)
    assert len(drafter.ended) == told
    engine.step()
    assert [one.request.index for one in drafter.ended if one.finish_reason == "abort"] == [0]
    while not engine.idle:
        engine.step()
    assert sorted(one.request.index for one in drafter.ended) == [0, 1, 2, 3, 4]


def test_a_new_run_knows_of_nobody_who_ended_before() -> None:
    """A drafter that is started anew, for a request that needs more room, does not receive sequences that it has not seen."""
    asked = [*ASKED, Request(6, PROMPTS[0], 60)]
    drafter = Listening(asked)
    engine = engine_of(drafter, ASKED)
    for _ in range(2):
        engine.step()
    assert engine.abort(ASKED[0].key)
    engine.add(asked[-1])
    while not engine.idle:
        engine.step()
    assert drafter.starts == 2
    assert sorted(one.request.index for one in drafter.ended) == [1, 2, 3, 4, 5, 6]


@pytest.mark.wide(but=["6"])
@pytest.mark.parametrize("fails_at", [1, 4, 6])
def test_a_drafter_that_misses_an_outcome_is_started_anew(fails_at: int) -> None:
    """Lack of memory in observe loses no token, decodes nothing again, and makes a new run with half the rows."""
    drafter = Listening(fails_at=fails_at)
    feeds = harness.Feeds()
    pipe = harness.pipeline(TARGET, drafter, batch_size=4, draft_length=4, observers=[feeds])
    with pytest.warns(RuntimeWarning, match="memory ran out: going on in batches of 2") as found:
        harness.check(pipe, ASKED)
    assert len(found) == 1
    assert drafter.starts == 2
    assert max(round.rows for round in feeds.rounds[fails_at:]) <= 2
    told = sum(int(round.report.gained.sum()) for round in feeds.rounds)
    assert told == pipe.report.tokens == sum(len(harness.expected(TARGET, one)[0]) for one in ASKED)


def test_tokens_of_a_batch_are_for_reading() -> None:
    """The host's tokens are those of the device, and cannot be written to."""
    pool = harness.open_pool(harness.requests(PROMPTS[:3], 4))
    batch = pool.batch(pool.admit(3))
    for row, length in enumerate(batch.lengths.tolist()):
        assert batch.tokens[row, :length].tolist() == batch.tokens_BS[row, :length].tolist()
    with pytest.raises(ValueError, match="read-only"):
        batch.tokens[0, 0] = 1


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
    told = noting(monkeypatch, LeftPadded, "commit", lambda _, layout, batch, kept: kept)
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
