"""Where rows share pages, a lack of memory has one sequence be preempted after the other, and nothing is lost."""

from __future__ import annotations

import gc
import importlib
import itertools
import re
import warnings
from typing import Any

import pytest
import torch
from planting import opened, wanted
from specframe_std.states.row_states import RowStates
from specframe_std.verifiers.chain import ChainVerifier
from specframe_testing import fakes, harness, states, zoo
from specframe_testing.paged_fake import Gathering, PagedFakeStore, Pages

from specframe import row_map
from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Draft, Scores
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch, Sequence
from specframe.engine import local_engine as engine_module
from specframe.engine import memory_limits
from specframe.engine.local_engine import LocalEngine
from specframe.pipeline import Pipeline
from specframe.text.sampling import Sampling

TARGET = zoo.build("llama")
DRAFT = zoo.good_draft(TARGET)
ASKED = harness.requests(harness.random_prompts([9, 5, 12, 1, 7], zoo.VOCABULARY, seed=3), [12, 20, 9, 16, 7])
WORDS = re.compile(r"memory ran out: request \((\d), (\d)\) gives its memory back to (\d) others, and is read again")


class Growing(Pages):
    """Pages that run out in the middle: rows may have a number of slots in all, which none of them takes in advance."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots
        self.stores: list[GrowingStore] = []
        self.fail_in = "expect"

    def open(self, shapes: Any, rows: int, capacity: int, device: torch.device) -> PagedFakeStore:
        """Return a store."""
        self.stores.append(
            GrowingStore(self, capacity, shapes, rows, -(-(capacity + 1) // self.page), self.page, device)
        )
        return self.stores[-1]


class GrowingStore(PagedFakeStore):
    """Counts the slots that the rows which it knows have written."""

    def __init__(self, backend: Growing, spare: int, *given: Any) -> None:
        super().__init__(*given)
        self.backend, self.spare, self.used = backend, spare, dict[int, int]()
        self.asked = list[Sequence]()

    def arrange(self, sequences: list[Sequence]) -> None:
        """Note the batch."""
        super().arrange(sequences)
        self.sequences = sequences

    def reserve(self, sequence: Sequence, tokens: int) -> int | None:
        """Admit where there is room for what the sequence begins with."""
        if self.used and sum(self.used.values()) + tokens > self.backend.slots:
            return None
        self.asked.append(sequence)
        return super().reserve(sequence, tokens)

    def expect(self, placement: Placement) -> None:
        """Run out of memory where rows have too many slots in all."""
        super().expect(placement)
        for sequence, slots in zip(self.sequences, placement.slots_BT.tolist(), strict=True):
            used = max((slot + 1 for slot in slots if slot < self.spare), default=0)
            self.used[id(sequence)] = max(self.used.get(id(sequence), 0), used)
        if sum(self.used.values()) > self.backend.slots:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def release(self, sequence: Sequence) -> None:
        """Have its slots again."""
        super().release(sequence)
        self.used.pop(id(sequence), None)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collect no garbage, which takes as long as there are objects of other tests."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def growing(slots: int, draft: Any = None, **options: Any) -> tuple[Pipeline, Growing, harness.Feeds]:
    """Return a pipeline on such pages, their backend, and what its rounds feed."""
    kv, feeds = Growing(slots), harness.Feeds()
    options = {"batch_size": 4, "draft_length": 3, "observers": [feeds], **options}
    return harness.pipeline(TARGET, draft, kv=kv, attention=Gathering(), **options), kv, feeds


def told(caught: list[warnings.WarningMessage]) -> list[tuple[int, int]]:
    """Return the request that each warning names, and how many are left."""
    found = [WORDS.search(str(one.message)) for one in caught]
    assert all(found), [str(one.message) for one in caught]
    return [(int(one[1]), int(one[3])) for one in found if one]


def test_rows_of_no_round_under_way_keep_what_they_have() -> None:
    """Only the youngest and the rows of the round that failed are read again."""
    asked = [Request(index, [3 + index] * 4, 30) for index in range(3)]
    pipe, kv, _ = growing(10**6, schedule="same-length,window=3,patience=2", batch_size=1, drafter="none")
    engine = opened(pipe, asked)
    for _ in range(9):
        engine.step()
    live = list(engine._pool.live)
    kv.slots = 1
    with pytest.warns(RuntimeWarning, match="request .2, 0. gives its memory back to 2 others"):
        assert engine.step() is None
    kv.slots = 10**6
    assert [one for one in engine._pool.live if one in live] == engine._pool.live != []
    for _ in range(20):
        engine.step()
        assert len(engine._pool.live) <= 2, "the third waits until another has ended"
    while not engine.idle:
        engine.step()


SCHEMES: tuple[dict[str, Any], ...] = (
    {"drafter": "prompt-lookup", "check": True},
    {"drafter": "model", "check": True},
    {"drafter": "model", "schedule": "continuous,piece=4"},
    {"drafter": "model", "schedule": "fixed"},
    {"drafter": "model,branch=2/2", "check": True},
    {"drafter": "early-exit,layers=1"},
    {"drafter": "layer-skip,skip=attn:0"},
    {"drafter": "none", "schedule": "same-length,window=5,patience=2", "batch_size": 2},
)


@pytest.mark.wide
@pytest.mark.parametrize("options", SCHEMES, ids=str)
def test_one_after_the_other_gives_way(options: dict[str, Any]) -> None:
    """The youngest is named and waits; the caches stay open, no row is lost and every token is the reference's."""
    draft = DRAFT if options["drafter"].startswith("model") else None
    pipe, kv, _ = growing(44, draft, **options)
    with pytest.warns(RuntimeWarning) as caught:
        harness.check(pipe, ASKED)
    given = told(list(caught))
    assert len(given) > 1
    assert given[0][1] in (2, 3, 4)
    models = 2 if draft is not None else 1
    assert len(kv.stores) == (2 * models if "check" in options else models), "nothing is opened anew"
    assert all(not store.used and not any(store._users) for store in kv.stores), "all is given back"


def test_log_probabilities_go_on() -> None:
    """A sequence that was preempted has the log-probabilities of all its tokens, those from before included."""
    prompts, how = [request.prompt_ids for request in ASKED], Sampling(logprobs=2)
    free = harness.pipeline(TARGET, DRAFT, batch_size=4, draft_length=3)
    wanted = [(one.token_ids, len(one.token_ids)) for one in free.generate(prompts, 12, sampling=how)]
    pipe, _, _ = growing(56, DRAFT)
    with pytest.warns(RuntimeWarning, match="gives its memory back"):
        found = [(one.token_ids, len(one.logprobs or ())) for one in pipe.generate(prompts, 12, sampling=how)]
    assert found == wanted


@pytest.mark.wide
def test_the_batch_grows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After calm rounds one sequence more is tried, and each further lack doubles the wait."""
    monkeypatch.setattr(memory_limits, "CALM_FOR_ONE", 2)
    pipe, kv, _ = growing(36)
    rows, step = list[int](), LocalEngine.step
    asked = harness.requests(harness.random_prompts([3] * 9, zoo.VOCABULARY), [20, 20, 20, 20, 4, 4, 4, 4, 4])

    def stepped(self: LocalEngine) -> Any:
        rows.append(len(self._pool.live))
        if len(rows) == 14:
            kv.slots = 10**6
        return step(self)

    monkeypatch.setattr(LocalEngine, "step", stepped)
    with pytest.warns(RuntimeWarning, match="gives its memory back"):
        harness.check(pipe, asked)
    assert min(rows[2:14]) < 4
    assert max(rows[14:]) == 4
    limits = memory_limits.RowLimits(8)
    limits.preempt_youngest(8, 100)
    limits.let_in(8, (90, 120))
    assert limits.live == 7
    limits.let_in(8, None)
    limits.preempt_youngest(7, 100)
    found = []
    for _ in range(9):
        limits.let_in(8, (90, 120))
        found.append(limits.live)
    assert found == [6, 6, 6, 7, 7, 7, 7, None, None]


@pytest.mark.wide(but=["wanted2-1"])
@pytest.mark.parametrize(("wanted", "more"), [((50, 900), 1), ((51, 101), 0), ((51, 100), 1), (None, 0)])
def test_one_more_is_let_in_at_once_where_its_tokens_fit(wanted: tuple[int, int] | None, more: int) -> None:
    """As long as half of the tokens that fitted are there, or as many as fitted at the sequences' ends, there is no wait."""
    limits = memory_limits.RowLimits(8)
    limits.preempt_youngest(5, 100)
    limits.let_in(8, wanted)
    assert limits.live == 4 + more


@pytest.mark.wide
def test_an_abort_of_one_that_gave_way() -> None:
    """A sequence that waits for memory is aborted with the tokens that it had, and the others go on."""
    pipe, kv, _ = growing(56)
    engine = opened(pipe, ASKED)
    ended, gone = dict[int, list[int]](), dict[int, list[int]]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while not engine.idle:
            if (report := engine.step()) is not None:
                ended |= {one.request.index: one.token_ids for one in report.finished}
            if caught and not gone and told(caught):
                one = engine.abort((told(caught)[0][0], 0))
                assert one is not None
                gone[one.request.index] = one.token_ids
    left = wanted(TARGET, ASKED)
    ((index, tokens),) = gone.items()
    assert tokens
    assert tokens == left.pop(index)[: len(tokens)]
    assert ended == left
    assert not kv.stores[0].used


class Cramped(ChainVerifier):
    """Runs out of memory at some calls with several rows, after or before the target was fed."""

    def __init__(self, calls: set[int], after: bool) -> None:
        self._calls, self._after, self._call = calls, after, 0

    def score(self, batch: Batch, draft: Draft) -> Scores:
        """Score, or fail."""
        self._call += len(batch) > 1
        out = self._call in self._calls and len(batch) > 1
        self._call += out and self._after
        if out and not self._after:
            raise torch.OutOfMemoryError("CUDA out of memory")
        scores = super().score(batch, draft)
        if out:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return scores


@pytest.mark.wide(but=["eqspec-states-False"])
@pytest.mark.parametrize(
    ("align", "kind", "after"),
    [
        *itertools.product(["ragged", "eqspec", "exspec", "masking,positions=content"], ["keys", "states"], [True]),
        ("eqspec", "states", False),
    ],
)
def test_every_layout_goes_on(align: str, kind: str, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of a round the layouts, stores and states have taken in: rows begin again in the caches that are open."""
    monkeypatch.setattr(engine_module, "share_memory", lambda use: True)
    with states.known():
        target = fakes.fake_target() if kind != "states" else states.fake_state_target()
        draft = fakes.fake_draft(target)
        asked = harness.requests(harness.random_prompts([3, 11, 1, 7, 5], 61), [12, 3, 9, 14, 8], {0})
        how: dict[str, Any] = {"batch_size": 3, "draft_length": 3, "check": "masking" not in align}
        if align == "exspec":
            how["schedule"] = "same-length,window=4,patience=2"
        pipe = harness.pipeline(target, draft, align=align, verify=Cramped({1, 3, 4, 9}, after), **how)
        with pytest.warns(RuntimeWarning) as caught:
            harness.check(pipe, asked)
    assert len(told(list(caught))) > 1


OTHERS = "same-length,window=6,patience=2"
"""A scheduler whose next batch has other rows than the one that memory ran out with."""


MANY = harness.requests(harness.random_prompts([5, 8, 5, 3, 9, 12, 3, 5], 61), [9, 7, 12, 8, 14, 6, 9, 11])


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:the device's memory ran out")
@pytest.mark.parametrize(
    ("draft", "align", "member", "late"),
    [
        ("states", "ragged", "_note", True),
        ("states", "eqspec", "begin", True),
        ("states", "exspec", "state", False),
        ("keys", "eqspec", "_note", True),
    ],
)
def test_what_was_fed_goes_with_its_batch(
    draft: str, align: str, member: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory runs out after a model with states was fed, the next batch takes in nothing of it, whoever its rows are."""
    usual, calls, at = getattr(RowStates, member), list[int](), 0

    def called(store: RowStates, *given: Any) -> Any:
        calls.append(1)
        found = usual(store, *given) if late or len(calls) != at else None
        if len(calls) == at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    monkeypatch.setattr(RowStates, member, called)
    with states.known():
        target = states.fake_state_target()
        model = fakes.fake_draft(target) if draft == "states" else fakes.fake_draft(fakes.fake_target())
        how: dict[str, Any] = {"kv": "paged,block=2", "align": align, "schedule": OTHERS, "batch_size": 3}
        pipe = harness.pipeline(target, model, draft_length=3, **how)
        for at in (9, 29, 30):
            calls.clear()
            harness.check(pipe, MANY)
            assert len(calls) > at


class Lacking:
    """A tensor that there is no memory to move rows of."""

    index_copy_ = None

    def index_select(self, *given: Any) -> Any:
        """Run out of memory."""
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.wide(but=["False-paged,block=2-continuous"])
@pytest.mark.filterwarnings("ignore:the device's memory ran out")
@pytest.mark.parametrize(
    ("drafted", "kv", "schedule"),
    [(True, "paged,block=2", OTHERS), (False, "paged,block=2", "continuous"), (False, "slab", OTHERS)],
)
def test_rows_that_were_being_moved(drafted: bool, kv: str, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that runs out while rows are moved, of tokens, states or keys, costs no row its own, be it of the round or not."""
    importlib.import_module("specframe_std.kv.slot_tables")  # which is to have the function as it is
    usual, calls, at = row_map.by_device, list[int](), 0

    def by_device(tensors: Any) -> dict[Any, list[Any]]:
        calls.append(1)
        found = usual(tensors)
        return (
            {one: [*group[: len(group) // 2], Lacking()] for one, group in found.items()} if len(calls) == at else found
        )

    monkeypatch.setattr(row_map, "by_device", by_device)
    with states.known():
        target = states.fake_state_target()
        draft = fakes.fake_draft(target) if drafted else None
        pipe = harness.pipeline(target, draft, kv=kv, schedule=schedule, batch_size=3, draft_length=3)
        for at in (1, 3, 8):
            calls.clear()
            harness.check(pipe, MANY)
            assert len(calls) >= min(at, 2)
