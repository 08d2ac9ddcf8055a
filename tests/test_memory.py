"""Running out of device memory halves the batch and loses nothing."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import torch
from planting import opened, wanted
from specframe_std.kv.slab import Slab
from specframe_std.policies.fixed_length import FixedLength
from specframe_std.verifiers.chain import ChainVerifier
from specframe_testing import fakes, harness, zoo

from specframe.contracts.roles import Observer
from specframe.engine import memory_limits
from specframe.errors import ModelError
from specframe.text.sampling import Sampling

TARGET = zoo.build("qwen3")
DRAFT = zoo.good_draft(TARGET)
PROMPTS = harness.random_prompts([3, 11, 1, 7, 5, 9, 2], zoo.VOCABULARY)


OUT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")


class Cramped(ChainVerifier):
    """A verifier that runs out of memory in some of the rounds with more rows than fit, by number."""

    def __init__(self, fit: int, rounds: set[int]) -> None:
        self._fit, self._rounds, self._round = fit, rounds, 0
        self.rows: list[int] = []

    def score(self, batch: Any, draft: Any) -> Any:
        """Score, or fail after the cache was written."""
        self._round += len(batch) > self._fit
        scores = super().score(batch, draft)
        if len(batch) > self._fit and self._round in self._rounds:
            raise OUT
        self.rows.append(len(batch))
        return scores


@pytest.mark.wide
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
@pytest.mark.parametrize("rounds", [{1}, {3}], ids=str)
def test_the_batch_is_halved_and_nothing_is_lost(align: str, rounds: set[int]) -> None:
    """Tokens are the reference's, in order, whichever round fails; later batches fit."""
    verifier = Cramped(2, rounds)
    pipe = harness.pipeline(TARGET, DRAFT, align=align, batch_size=4, draft_length=3, verify=verifier, check=True)
    asked = harness.requests(PROMPTS, [12, 3, 9, 1, 14, 8, 10], {zoo.EOS})
    with pytest.warns(RuntimeWarning, match="memory ran out: going on in batches of 2"):
        harness.check(pipe, asked)
    assert (max(verifier.rows) > 2) == (rounds != {1})
    assert max(verifier.rows[-4:]) <= 2
    assert pipe.report.sequences == len(PROMPTS)
    assert pipe.report.tokens == sum(len(tokens) for tokens, _ in (harness.expected(TARGET, one) for one in asked))


class Greedy(Observer):
    """An observer that needs more memory than there is, in one of its members and from one round on."""

    def __init__(self, member: str, finished: bool) -> None:
        self._member, self._finished, self.called = member, finished, 0

    def _fall(self, member: str, due: bool = True) -> None:
        if member == self._member and due:
            self.called += 1
            raise OUT

    def enter(self, stage: str) -> None:
        self._fall("enter")

    def leave(self, stage: str) -> None:
        self._fall("leave")

    def forward(self, model: str, rows: int, tokens: int) -> None:
        self._fall("forward")

    def round(self, report: Any) -> None:
        self._fall("round", bool(report.finished) or not self._finished)


@pytest.mark.wide(but=["round-False"])
@pytest.mark.parametrize(
    ("member", "finished"), [("enter", False), ("leave", False), ("forward", False), ("round", False), ("round", True)]
)
def test_an_observer_without_memory_loses_nothing(member: str, finished: bool) -> None:
    """Sequences that end in the round are returned with the others, no batch is halved, and the observer is called no more."""
    target, greedy = fakes.fake_target(), Greedy(member, finished)
    pipe = harness.pipeline(target, fakes.fake_draft(target), batch_size=3, draft_length=3, observers=[greedy])
    with pytest.warns(
        RuntimeWarning, match="observer Greedy receives nothing more: the device's memory ran out in it"
    ) as found:
        harness.check(pipe, harness.requests(harness.random_prompts([3, 5, 1], 61), [2, 9, 4]))
    assert (len(found), greedy.called) == (1, 1)


def test_a_policy_without_memory_misses_a_round() -> None:
    """A policy that cannot learn from a round does not have it decoded again."""

    class Forgetful(FixedLength):
        def observe(self, report: Any) -> None:
            raise OUT

    target = fakes.fake_target()
    pipe = harness.pipeline(target, fakes.fake_draft(target), batch_size=3, draft_length=Forgetful(3))
    with pytest.warns(RuntimeWarning, match="draft-length policy received a round, which it misses"):
        harness.check(pipe, harness.requests(harness.random_prompts([3, 5, 1], 61), [2, 9, 4]))


def test_log_probabilities_are_computed_where_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the device has no room for a round's log-probabilities they are the host's, and no result is without them."""
    target, how = fakes.fake_target(), Sampling(logprobs=2)
    pipe = harness.pipeline(target, fakes.fake_draft(target), batch_size=3, draft_length=3)
    prompts = harness.random_prompts([3, 5, 1], 61)
    free = [(one.token_ids, one.logprobs, one.top_logprobs) for one in pipe.generate(prompts, 6, sampling=how)]
    right, left = torch.Tensor.log_softmax, [OUT]

    def cramped(self: torch.Tensor, *given: Any) -> torch.Tensor:
        if left:
            raise left.pop()
        return right(self, *given)

    monkeypatch.setattr(torch.Tensor, "log_softmax", cramped)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [(one.token_ids, one.logprobs, one.top_logprobs) for one in pipe.generate(prompts, 6, sampling=how)]
    assert found == free
    assert not left


class Slabs(Slab):
    """A backend whose device has memory for a number of rows."""

    def __init__(self, fit: int) -> None:
        super().__init__()
        self.fit, self.asked = fit, list[int]()

    def open(self, shapes: Any, rows: int, *given: Any) -> Any:
        self.asked.append(rows)
        assert len(self.asked) < 100, "the same is tried again and again"
        if rows > self.fit:
            raise OUT
        return super().open(shapes, rows, *given)


def test_the_rows_that_are_halved_are_those_there_were() -> None:
    """A scheduler that keeps more rows than a batch has goes on with half of them: what does not fit is not tried again."""
    target, kv = fakes.fake_target(), Slabs(8)
    pipe = harness.pipeline(target, batch_size=4, schedule="same-length,window=16", kv=kv)
    with pytest.warns(RuntimeWarning, match="going on in batches of 2 with 8 sequences in memory$"):
        harness.check(pipe, harness.requests(harness.random_prompts([3] * 16, 61), 5))
    assert kv.asked == [16, 8]


@pytest.mark.wide
def test_rows_grow_again_after_a_passing_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """After enough calm rounds twice the rows are tried, up to all; each further lack doubles the wait."""
    monkeypatch.setattr(gc, "collect", lambda: 0)  # each takes as long as there are objects of other tests
    monkeypatch.setattr(memory_limits, "CALM", 4)
    target, kv = fakes.fake_target(), Slabs(4)
    pipe = harness.pipeline(target, batch_size=8, kv=kv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        harness.check(pipe, harness.requests(harness.random_prompts([3] * 40, 61), 9))
    assert kv.asked[:5] == [8, 4, 8, 4, 8]
    limits = memory_limits.RowLimits(8)
    assert limits.of(8) == 8
    assert limits.shrink(8)
    assert [limits.grow(True) for _ in range(4)] == [False, False, False, True]
    assert (limits.of(8), limits.batch_size) == (8, 8)


def test_an_engine_goes_on_after_one_row_had_no_memory() -> None:
    """A lack of memory with one row is an error; stepped on, the engine decodes what is left, the request in that row too."""
    target = fakes.fake_target()
    asked = harness.requests(harness.random_prompts([3, 5], 61), 5)
    pipe = harness.pipeline(target, batch_size=1, verify=Cramped(0, {2, 4}))
    engine = opened(pipe, asked)
    ended, errors = dict[int, list[int]](), list[str]()
    while not engine.idle:
        try:
            report = engine.step()
        except ModelError as error:
            errors.append(str(error))
        else:
            ended |= {one.request.index: one.token_ids for one in (report.finished if report else ())}
    assert ["does not suffice for one sequence" in one for one in errors] == [True, True]
    assert ended == wanted(target, asked)


def test_limits_do_not_grow_where_nothing_waits() -> None:
    """Rows that nobody waits for are not opened: live sequences would be read in again for nothing."""
    limits = memory_limits.RowLimits(4)
    limits.of(4)
    limits.shrink(4)
    assert not any(limits.grow(False) for _ in range(2 * memory_limits.CALM))
    assert limits.grow(True)
