"""The life of a sequence: waiting, live, finished, and its tokens in the pool's buffers."""

from __future__ import annotations

import pytest
import torch
from specframe_testing.harness import open_pool, requests

from specframe.contracts.drafts import Acceptance, Draft, Transfer
from specframe.contracts.requests import Request
from specframe.engine.pool import Pool


def gain(pool, batch, rows, accepted=None):
    """Give every row these tokens, the last of each row's accepted ones being the bonus token."""
    tokens_BT = torch.tensor(rows)
    accepted_B = torch.full((len(rows),), tokens_BT.shape[1] - 1) if accepted is None else torch.tensor(accepted)
    acceptance = Acceptance(accepted_B, tokens_BT)
    pool.append(batch, acceptance)
    return pool.advance(batch, Transfer(Draft(tokens_BT[:, :-1]), acceptance))


def started(asked, **options):
    """Return a pool in which everything is live and has its prompt in place, and the batch of it."""
    pool = open_pool(asked, **options)
    batch = pool.batch(pool.admit(len(asked)))
    acceptance = Acceptance(torch.zeros(len(asked), dtype=torch.long), torch.full((len(asked), 1), 9))
    pool.append(batch, acceptance)
    pool.advance(batch, Transfer(Draft(batch.tokens_BS[:, :0]), acceptance))
    return pool, pool.batch(pool.live)


def test_a_waiting_request_is_aborted_without_looking_at_the_others():
    """Requests that wait are found by their key: those before and after it are not looked at, and keep their order."""
    pool = Pool([], 1, 64, 64)
    looked = []

    class Watched(Request):
        @property
        def key(self):
            looked.append(self.index)
            return super().key

    for index in range(50):
        pool.add(Watched(index, [1], 4))
    looked.clear()
    ended = pool.abort((30, 0))
    assert (ended.request.index, ended.finish_reason) == (30, "abort")
    assert looked == []
    assert [request.index for request in pool.waiting] == [*range(30), *range(31, 50)]
    assert (pool.abort((30, 0)), pool.unfinished) == (None, 49)


def test_metrics_count_what_stands():
    """Draft tokens a row cannot use are not drafted, those after a stop not accepted; reading prompts is no step."""
    pool, batch = started(requests([[1], [1], [1]], [3, 9, 9], [set(), {5}, set()]))
    gain(pool, batch, [[5, 6, 7, 8]] * 3, accepted=[3, 3, 1])
    metrics = [sequence.metrics for sequence in batch.sequences]
    assert [m.num_draft_tokens for m in metrics] == [1, 3, 3]
    assert [m.num_accepted_draft_tokens for m in metrics] == [1, 1, 1]
    assert [m.num_spec_steps for m in metrics] == [1, 1, 1]
    assert metrics[2].mean_acceptance_length == 2
    assert metrics[2].draft_acceptance_rate == pytest.approx(1 / 3)


def test_a_batch_tells_how_many_others_wait():
    """They wait for a row, from when they are let in. Those whose row waits for a later round do not."""
    pool, batch = started(requests([[1]] * 3, 9))
    assert batch.waiting == 0
    pool.add(Request(3, [1], 9))
    pool.add(Request(4, [1], 9, arrival=5.0))
    assert pool.admit(1) == []
    assert pool.batch(pool.live).waiting == pool.batch(pool.live[:2]).waiting == 1
    pool.preempt(pool.live[0])
    assert pool.batch(pool.live).waiting == 2


def test_samples_of_an_aborted_reader_read_the_prompt_themselves():
    """A sample whose parent was aborted in the middle of the prompt has nothing to copy: it reads all of it."""
    pool = open_pool([Request(0, [1, 2, 3, 4], 3), Request(0, [1, 2, 3, 4], 3, sample=1)])
    (parent,) = pool.admit(2)
    before = pool.live[1]
    assert pool.batch([parent], 2).left == 2
    pool.abort((0, 0))
    (fork,) = pool.admit(2)
    assert (before.gone, fork.request) == (True, before.request)
    batch = pool.batch([fork])
    assert (fork.parent, batch.prefill, batch.uncached) == (None, True, 4)


def preempting(asked, **options):
    """Return a pool whose sequences all decode, and the preempted ones."""
    pool, _ = started(asked, **options)
    released = []
    pool.release = released.append
    return pool, released


def test_a_preempted_sequence_waits_first_with_its_tokens():
    """It has ended for whoever keeps data by row, the others keep their rows, and its request goes on before those that wait."""
    pool, released = preempting(requests([[1, 2], [3], [4, 5]], 9), rows=4)
    pool.add(requests([[1]] * 4, 9)[3])
    gain(pool, pool.batch(pool.live), [[5, 6]] * 3)
    first, second, third = pool.live
    metrics = second.metrics
    pool.preempt(second)
    assert (pool.live, released, pool.newly_ended()) == ([first, third], [second], [second])
    assert (second.gone, second.finish_reason) == (True, None)
    batch = pool.batch(pool.live)
    assert batch.lengths.tolist() == batch.lengths_B.tolist() == [5, 5]
    again, new = pool.admit(3)
    assert [again.request.key, new.request.key] == [(1, 0), (3, 0)]
    assert again.metrics is metrics
    batch = pool.batch([again, new])
    assert batch.lengths.tolist() == [4, 1]
    assert batch.uncached_rows.tolist() == [4, 1]
    assert batch.tokens_BS[0, :4].tolist() == [3, 9, 5, 6]
    gain(pool, batch, [[7], [8]])
    assert pool.abort((1, 0)).token_ids == [9, 5, 6, 7]


@pytest.mark.wide(but=["0"])
@pytest.mark.parametrize("who", [0, 1, 2])
def test_samples_of_a_preempted_sequence(who):
    """A fork that is preempted reads the prompt itself; where its parent is, so do all that have not begun."""
    asked = [Request(0, [1, 2, 3, 4], 3, sample=sample) for sample in range(3)]
    pool = open_pool(asked)
    (parent,) = pool.admit(3)
    gain(pool, pool.batch([parent]), [[9]])
    released = []
    pool.release = released.append
    before = list(pool.live)
    pool.preempt(before[who])
    assert released == (before[::-1] if who == 0 else [before[who]])
    assert parent.forks == (0 if who == 0 else 1)
    assert len(pool.live) == (0 if who == 0 else 2)
    for _ in range(3):
        if reading := pool.admit(3):
            assert all(one.parent is None for one in reading)
            gain(pool, pool.batch(reading), [[9]] * len(reading))
    while pool.live:
        batch = pool.batch(pool.live)
        gain(pool, batch, [[9]] * len(batch))
    assert pool.unfinished == 0


def test_the_youngest_gives_way_and_a_round_under_way_begins_again():
    """Those of the round under way wait in their order, the youngest after them; those of no such round stay."""
    pool, released = preempting(requests([[1], [2], [3], [4]], 9))
    first, second, third, fourth = pool.live
    pool.batch([second, third])
    assert pool.preempt_youngest() is fourth
    assert pool.live == [first]
    assert set(released) == {second, third, fourth}
    pool.most = 3
    assert [one.request.index for one in pool.admit(4)] == [1, 2]
    gain(pool, pool.batch(pool.live[1:]), [[8], [8]])
    assert pool.preempt_youngest().request.index == 2, "after a committed round nobody else begins again"
    assert [one.request.index for one in pool.live] == [0, 1]
    pool.most = None
    assert [one.request.index for one in pool.admit(4)] == [2, 3]


def test_preempting_the_last_fork_frees_the_row_of_a_parent_that_has_ended():
    """A parent that has finished keeps its row for its forks only."""
    asked = [Request(0, [1, 2], 1), Request(0, [1, 2], 3, sample=1)]
    pool = open_pool(asked)
    (parent,) = pool.admit(2)
    gain(pool, pool.batch([parent]), [[9]])
    assert not parent.gone
    pool.preempt(pool.live[0])
    assert parent.gone
