"""Schedulers: everyone is served, soon enough, in batches that make sense."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
import torch

from specframe.contracts.drafts import Acceptance, Draft, Transfer
from specframe.contracts.round import Batch
from specframe.engine.pool import Pool
from specframe_testing import harness, standard
from specframe_testing.conformance.decoding_suite import DecodingSuite, fake_pair, usual_requests

DRAFT_LENGTH = 4
Gains = Callable[[int, int], int]
"""Accepted draft tokens of a row, from its request's index and its length."""


@attrs.frozen
class Seen:
    """One simulated round: the batch's request indices and lengths, and the live sequences."""

    indices: list[int]
    lengths: list[int]
    prefill: bool
    live: int
    longest_wait: int
    """The most rounds a live sequence had been without one when the batch was formed, this round included."""


def simulate(
    scheduler: Any, prompts: Sequence[int], new: Sequence[int], batch_size: int, gains: Gains, rows: int | None = None
) -> list[Seen]:
    """Run a scheduler over prompts of these lengths without any model and return its rounds, up to its own end."""
    asked = harness.requests([[1] * length for length in prompts], new)
    rows = min(scheduler.rows(batch_size), len(asked)) if rows is None else rows
    pool = harness.open_pool(asked, rows)
    seen: list[Seen] = []
    while (batch := scheduler.next_batch(pool)) is not None:
        assert len(seen) < 100 + 20 * sum(new), "the scheduler does not come to an end"
        seen.append(look(pool, batch))
        advance(pool, batch, gains)
    assert not pool.live
    assert not pool.waiting
    return seen


def look(pool: Pool, batch: Batch) -> Seen:
    """Check one batch and record it."""
    sequences = [*batch.sequences, *(batch.mixed.sequences if batch.mixed else [])]
    assert batch.sequences, "an empty batch"
    assert len({id(sequence) for sequence in sequences}) == len(sequences), "a sequence twice in a batch"
    assert not any(sequence.finished for sequence in sequences), "a finished sequence in a batch"
    assert all(sequence in pool.live for sequence in sequences), "a sequence that is not live"
    assert len(pool.live) <= pool.rows, "more live sequences than rows"
    indices = [sequence.request.index for sequence in batch.sequences]
    waits = [sequence.waited for sequence in pool.live]
    return Seen(indices, batch.lengths.tolist(), batch.prefill, len(pool.live), max(waits))


def advance(pool: Pool, batch: Batch, gains: Gains) -> None:
    """Let every row of a batch gain its scripted number of tokens."""
    count = 0 if batch.prefill else DRAFT_LENGTH
    gained = [
        min(count, gains(sequence.request.index, int(length)))
        for sequence, length in zip(batch.sequences, batch.lengths, strict=True)
    ]
    tokens_BT = torch.ones(len(batch), count + 1, dtype=torch.long, device=harness.device())
    acceptance = Acceptance(torch.tensor(gained, device=harness.device()), tokens_BT)
    pool.append(batch, acceptance)
    pool.advance(batch, Transfer(Draft(tokens_BT[:, :count]), acceptance))


def workload(count: int, seed: int) -> tuple[list[int], list[int], Gains]:
    """Return prompt lengths, new tokens and acceptance of a random workload."""
    choose = random.Random(seed)
    prompts = [choose.randint(1, 12) for _ in range(count)]
    new = [choose.choice([1, 2, 8, 20, 40]) for _ in range(count)]
    return prompts, new, lambda index, length: hash((seed, index, length)) % (DRAFT_LENGTH + 1)


class SchedulerSuite(DecodingSuite):
    """Tests of a scheduler."""

    role = "scheduler"
    reads_beside = False
    """Whether the scheduler makes mixed batches."""

    def max_wait(self, batch_size: int) -> int:
        """Return the most rounds that a live sequence may wait; override it with the scheduler's own bound."""
        return 10 * self.object().rows(batch_size)

    def run(self, count: int, batch_size: int, seed: int) -> list[Seen]:
        """Simulate a random workload."""
        return simulate(self.object(), *workload(count, seed)[:2], batch_size, workload(count, seed)[2])

    @pytest.mark.parametrize("batch_size", [1, 3, 8])
    def test_everyone_is_served(self, batch_size: int) -> None:
        """Every request is read once, and the scheduler ends when all have finished."""
        for count in (1, 2, 9, 30):
            seen = self.run(count, batch_size, seed=count)
            read = [index for round in seen if round.prefill for index in round.indices]
            assert sorted(read) == list(range(count))

    @pytest.mark.parametrize("batch_size", [1, 3, 8])
    def test_batches_are_no_larger_than_asked(self, batch_size: int) -> None:
        """No batch has more rows than the batch size, and no more sequences are live than rows."""
        rows = self.object().rows(batch_size)
        assert rows >= batch_size
        for round in self.run(24, batch_size, seed=1):
            assert len(round.indices) <= batch_size
            assert round.live <= rows

    @pytest.mark.parametrize("batch_size", [1, 4])
    def test_nobody_waits_for_long(self, batch_size: int) -> None:
        """No live sequence is without a round for longer than declared, in any of several workloads."""
        bound = self.max_wait(batch_size)
        for seed in range(3):
            assert max(round.longest_wait for round in self.run(40, batch_size, seed)) <= bound

    def test_a_crowd_in_step_does_not_starve_the_rest(self) -> None:
        """Sequences that advance in step with a batch of others do not keep the odd one out waiting."""
        prompts = [4] * 30 + [7] + [4] * 30
        seen = simulate(self.object(), prompts, [40] * len(prompts), 4, lambda index, _: 3 if index != 30 else 0)
        assert max(round.longest_wait for round in seen) <= self.max_wait(4)

    def test_a_stream_of_short_requests_does_not_starve_a_long_one(self) -> None:
        """Requests that end in the round of their prompt do not delay decoding sequences."""
        seen = simulate(self.object(), [3] * 61, [20, *[1] * 60], 2, lambda index, _: 0)
        assert max(round.longest_wait for round in seen) <= self.max_wait(2)

    def test_prompts_and_decoding_do_not_mix(self) -> None:
        """A batch either reads prompts or decodes: first rounds and later rounds are not mixed."""
        read: set[int] = set()
        for round in self.run(24, 4, seed=2):
            assert {index not in read for index in round.indices} == {round.prefill}
            read |= set(round.indices)
        assert read == set(range(24))

    def test_fewer_rows_than_it_asked_for(self) -> None:
        """With fewer rows than the scheduler asked for, as when there are few prompts, everyone is served."""
        scheduler = self.object()
        scheduler.rows(4)
        prompts, new, gains = workload(12, 5)
        seen = simulate(scheduler, prompts, new, 4, gains, rows=4)
        assert max(round.live for round in seen) <= 4

    def test_no_requests(self) -> None:
        """Without requests there is no batch."""
        scheduler = self.object()
        scheduler.rows(4)
        assert scheduler.next_batch(Pool([], 4, 8, 64)) is None

    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_every_alignment(self, align: str) -> None:
        """The scheduler's batches are decoded right under every alignment."""
        target, draft = fake_pair()
        self.verify(self.pipeline(target, draft, align=align), usual_requests(target))

    def test_finished_rows_are_not_run(self) -> None:
        """Every forward pass has the rows of its batch, none of which has finished before."""
        target, draft = fake_pair()
        feeds = harness.Feeds()
        gone: set[int] = set()
        self.verify(self.pipeline(target, draft, observers=[feeds]), usual_requests(target))
        for round in feeds.rounds:
            indices = {sequence.request.index for sequence in round.report.sequences}
            assert not indices & gone
            if not self.reads_beside:
                assert {rows for rows, _ in round.target + round.draft} == {round.rows}
            gone |= {sequence.request.index for sequence in round.report.finished}
        assert gone == {request.index for request in usual_requests(target)}
