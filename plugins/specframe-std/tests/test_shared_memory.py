"""Stores whose rows share memory: rows take as much as they use, and lose nothing, whatever comes and goes."""

from __future__ import annotations

import itertools
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from products import crossed
from specframe_std.kv.page_pool import SPARE
from specframe_std.kv.paged import Paged, PagedStore
from specframe_std.kv.pooled import SharedPoolStore
from specframe_std.kv.slot_tables import Slots
from specframe_testing import fakes, harness, zoo

from specframe.contracts.cache import KVShape, rounding
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.contracts.round import Sequence, SequenceState
from specframe.engine.engine_clock import HandClock
from specframe.engine.local_engine import LocalEngine
from specframe.errors import OptionError, SpecframeError
from specframe.pipeline import Pipeline
from specframe.text.sampling import Sampling
from specframe.value_checks import byte_count

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
PROMPTS = harness.random_prompts([5, 21, 1, 9, 40, 3, 14, 7], 61)
ASKED = harness.requests(PROMPTS, [9, 4, 17, 7, 12, 3, 25, 1], {7})
STORES = ["pool", *(f"paged,block={rest}" for rest in ("1", "3", "16", "3,view=blocks", "3,share=on"))]


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> list[SharedPoolStore]:
    """Have every slot hold nan that no row has: who reads one, in whatever way, decodes something else. Note the stores."""
    stores: list[SharedPoolStore] = []
    release, expect = SharedPoolStore.release, SharedPoolStore.expect

    @torch.inference_mode()
    def spoil(store: SharedPoolStore) -> None:
        taken = {0}.union(*(slots_of(store, row) for row in store._rows.values()), kept_slots(store))
        free = np.array(sorted({*range(store.memory.count)} - taken), dtype=np.int64)
        for part in itertools.chain(*store.memory.layers):
            part[free] = float("nan") if part.is_floating_point() else 255  # of bytes this is a scale that is nan

    def released(self: SharedPoolStore, sequence: Any) -> None:
        release(self, sequence)
        spoil(self)

    def expected(self: SharedPoolStore, placement: Any) -> None:
        if self not in stores:
            stores.append(self)
        spoil(self)
        expect(self, placement)

    monkeypatch.setattr(SharedPoolStore, "release", released)
    monkeypatch.setattr(SharedPoolStore, "expect", expected)
    return stores


def slots_of(store: SharedPoolStore, row: Any) -> set[int]:
    """Return the pool's slots that a row has."""
    if isinstance(store, PagedStore):
        return {*store._slots_of(row.blocks).tolist()} if row.blocks else set()
    return {*range(row.start, row.stop)}


def kept_slots(store: SharedPoolStore) -> set[int]:
    """Return the slots of blocks that are kept though no row has them."""
    if not isinstance(store, PagedStore) or not store.blocks._idle:
        return set()
    return {*store._slots_of([*store.blocks._idle]).tolist()}


def require_accounts(store: SharedPoolStore, live: int = 0) -> None:
    """Check that a store knows ``live`` rows, and that each slot is one row's, shared, kept or free."""
    assert len(store._rows) == live
    if isinstance(store, PagedStore) and store.host:
        assert store.host.nbytes <= store._how.host
    if isinstance(store, PagedStore):
        blocks, had = store.blocks, [block for row in store._rows.values() for block in row.blocks]
        assert {block: had.count(block) for block in had} == blocks._users
        assert sorted([*{*had}, *blocks.free, *blocks._idle]) == [*range(1, blocks.made + 1)]
        assert {*blocks._idle} <= {*blocks._key_of}
        assert {key: block for block, key in blocks._key_of.items()} == blocks._with_key
        assert not {*blocks._key_of} & {*blocks.free}
    else:
        slots = [slot for row in store._rows.values() for slot in slots_of(store, row)]
        assert len({*slots}) == len(slots)
        assert store.reserved() == len(slots)


def pipeline(kv: str, draft: Any = DRAFT, **options: Any) -> Pipeline:
    """Return a pipeline of the fakes."""
    return harness.pipeline(TARGET, draft, kv=kv, **{"batch_size": 3, "draft_length": 3, **options})


@pytest.mark.wide(but=["pool-3", "paged,block=3,view=blocks-3"])
@pytest.mark.parametrize(("kv", "batch"), [*itertools.product(STORES[:1], [1, 8]), *((kv, 3) for kv in STORES)])
def test_tokens_are_exact(kv: str, batch: int, poison: list[SharedPoolStore]) -> None:
    """Rows of all lengths decode to the reference's tokens, and at the end no row has a slot."""
    harness.check(pipeline(kv, batch_size=batch), ASKED)
    assert len(poison) == 2, "the target's and the draft model's"
    for store in poison:
        require_accounts(store)


WAYS: list[dict[str, Any]] = [
    {"drafter": "model,tree=dynamic,nodes=8"},
    {"drafter": "model,tree=dynamic,nodes=8", "align": "eqspec"},
    {"schedule": "continuous,piece=4"},
    {"schedule": "continuous,piece=4,mixed=on"},
    {"align": "eqspec"},
    {"align": "exspec"},
    {"align": "rollback"},
    {"check": True},
]


@pytest.mark.wide(but=["{'align': 'eqspec'}"])
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_tokens_are_exact_however_they_are_drafted(options: dict[str, Any]) -> None:
    """Trees, pieces and the other alignments find their slots, in blocks that nothing is a multiple of."""
    harness.check(pipeline("paged,block=3", **options), ASKED)


@pytest.mark.wide(but=["pool-qwen3"])
@pytest.mark.parametrize(
    ("kv", "name"),
    crossed(["pool", "paged,block=3,share=on", "paged,block=3,view=blocks", "paged,block=3"], ["qwen3", "gemma3"]),
)
def test_models_read_no_slot_that_no_row_has(kv: str, name: str) -> None:
    """In a real model 0 times nan is nan, so a slot that masks hide is found as well."""
    target = zoo.build(name)
    pipe = harness.pipeline(target, zoo.good_draft(target), kv=kv, batch_size=3, draft_length=3)
    prompts = harness.random_prompts([5, 14, 1, 9], zoo.VOCABULARY)
    harness.check(pipe, harness.requests(prompts, [9, 4, 12, 7], {zoo.EOS}))
    harness.check(pipe, harness.requests(prompts[:3], [2, 9, 12]))  # the first row leaves, and nobody takes its slots


@pytest.mark.wide(but=["pool-ragged"])
@pytest.mark.parametrize(
    ("kv", "align"),
    [
        ("pool", "ragged"),
        ("pool", "eqspec"),
        ("paged,block=3", "ragged"),
        ("paged,block=3", "eqspec"),
        (STORES[-1], "ragged"),
    ],
)
def test_samples_start_from_one_row(kv: str, align: str, poison: list[SharedPoolStore]) -> None:
    """Samples of a prompt draw what they draw on a slab."""
    how = Sampling(temperature=1.0, samples=3)
    found, expected = (
        [one.token_ids for one in pipeline(store, accept="gumbel", align=align).generate(PROMPTS[:3], 6, sampling=how)]
        for store in (kv, "slab")
    )
    assert found == expected
    for store in poison:
        require_accounts(store)


def test_samples_have_one_copy_of_their_prompt() -> None:
    """A fork has its parent's blocks; who writes to one has a copy of it."""
    store = Paged(block=4).open([], 4, 60, torch.device("cpu"))
    parent, *forks = sequences([[*range(10)]] * 3)
    for fork in forks:
        fork.parent = parent
    assert store.reserve(parent, 10) == 0
    store._rows[id(parent)].stands = 10
    for fork in forks:
        assert store.reserve(fork, 10) == 0
    store.arrange(forks)
    assert store.blocks.used == 3
    store._fitted(np.array([9, 9]), np.array([12, 12]))
    assert store.blocks.used == 5, "each has its own third block"
    assert store._rows[id(forks[0])].blocks[:2] == store._rows[id(parent)].blocks[:2]
    for one in (parent, *forks):
        store.release(one)
    require_accounts(store)


def sequences(prompts: list[list[int]]) -> list[Any]:
    """Return sequences that wait."""
    return [Sequence(Request(index, prompt, 5), len(prompt) + 5) for index, prompt in enumerate(prompts)]


def come_and_go(kv: str, stores: list[SharedPoolStore], count: int, seed: int) -> None:
    """Add, abort and preempt requests at random while others decode, and check tokens, and where every slot is."""
    choose, pipe = random.Random(seed), pipeline(kv, batch_size=4)
    engine = LocalEngine(pipe.recipe, pipe.parts, [], HandClock(), pipe.executor)
    engine.make_room(60)
    beginnings = harness.random_prompts([12, 12, 3], 61, seed=8)
    asked, ended, aborted = dict[Any, Request](), dict[Any, list[int]](), set[Any]()
    while len(ended) + len(aborted) < count:
        if len(asked) < count and (engine.idle or choose.random() < 0.4):
            prompt = [*choose.choice(beginnings), *choose.choices(range(61), k=choose.randint(1, 18))]
            one = Request(len(asked), prompt, choose.randint(1, 25), frozenset({7}))
            asked[one.key] = one
            engine.add(one)
        waiting = [key for key in asked if key not in ended and key not in aborted]
        if waiting and choose.random() < 0.08:
            aborted.add(choose.choice(waiting))
            assert engine.abort(next(iter(aborted - {*ended} & {*waiting}))) is not None
        pool = engine._pool
        if len(pool.live) > 1 and choose.random() < 0.1:
            pool.preempt(choose.choice(pool.live))
        report = engine.step()
        ended |= {one.request.key: one.token_ids for one in (report.finished if report else ())}
        if report is not None:
            for store in stores:
                require_accounts(store, len(pool.live))
    for key, tokens in ended.items():
        assert tokens == harness.expected(TARGET, asked[key], rounding(pipe.composition.kv))[0]
    engine.close()
    for store in stores:
        require_accounts(store)
        assert not (isinstance(store, PagedStore) and store.host and store.host.nbytes)


COMING = [
    "pool",
    "paged,block=3",
    "paged,block=4,blocks=26",
    "paged,block=3,blocks=34,share=on",
    "paged,block=4,blocks=26,host=600",
    "paged,block=1,blocks=100,share=on,host=1KB,dtype=int8,draft_dtype=int8",
]


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:the device's memory ran out")
@pytest.mark.parametrize("kv", COMING)
def test_requests_come_and_go(kv: str, poison: list[SharedPoolStore]) -> None:
    """Whatever comes, is aborted and is preempted, tokens are exact, and every slot is accounted for after every round."""
    come_and_go(kv, poison, 14, 5)


@pytest.mark.wide
def test_a_row_costs_what_it_uses(poison: list[SharedPoolStore]) -> None:
    """New tokens that are allowed and not used cost nothing, and a long row costs the short ones nothing."""
    asked = harness.requests(harness.random_prompts([40, 4, 4, 4], 61), 30)
    for kv, most in (("paged,block=4", 1.2), ("pool", 1.8)):
        slots = list[tuple[int, int]]()

        class Noted(Observer):
            def round(self, report: Any) -> None:
                if not report.prefill and report.number < 8:
                    slots.append((poison[-2].reserved(), int(report.lengths.sum())))  # noqa: B023

        harness.check(pipeline(kv, batch_size=4, observers=[Noted()]), asked)
        assert slots
        for reserved, live in slots:
            assert reserved <= most * live + 4 * (5 if "paged" in kv else SPARE), (
                f"{kv}: {reserved} slots for {live} tokens"
            )
        poison.clear()


@pytest.mark.wide
def test_a_total_that_is_no_total() -> None:
    """Totals that mean nothing are refused in a sentence."""
    for given, said in (
        ({"memory": "2 parsecs"}, "memory: expected bytes as in 2GB, 512MB or 1.5GiB, got '2 parsecs'"),
        ({"memory": "0"}, "memory: expected bytes"),
        ({"block": 0}, "block: expected a whole number of at least 1, got 0"),
        ({"blocks": 3, "memory": "2GB"}, "paged: expected blocks or memory, got both"),
        ({"share": "yes"}, "share: expected 'on' or 'off', got 'yes'"),
    ):
        with pytest.raises(SpecframeError, match=said):
            Paged(**given)
    assert [byte_count("memory", one) for one in ("2GB", "1.5 KiB", 7, "3mb")] == [2 * 10**9, 1536, 7, 3 * 10**6]
    with pytest.raises(OptionError, match="which one block takes, got 100"):
        harness.decode(pipeline("paged,memory=100"), ASKED[:1])


def test_one_row_gives_way_and_not_half_of_them() -> None:
    """Where blocks run out in a round the youngest sequence gives its own to the others."""
    asked = harness.requests(harness.random_prompts([9] * 4, 61), 30)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        harness.check(pipeline("paged,block=4,blocks=26", batch_size=4), asked)
    said = [str(one.message) for one in found]
    assert any("gives its memory back to" in one for one in said)
    assert not any("going on in batches of" in one for one in said)


def test_who_is_not_admitted_for_lack_of_memory_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the pool cannot grow for a prompt, all that it was given goes back, and those that live keep their own."""
    store = Paged(block=4, share="on").open([KVShape(1, 2, 2, torch.float32)], 4, 400, torch.device("cpu"))
    first, second = sequences([[*range(10)], [*range(300)]])
    assert store.reserve(first, 10) == 0
    made, resize = store.memory.count, Slots.resize

    def cramped(self: Slots, count: int) -> None:
        if count > made:
            raise torch.OutOfMemoryError("CUDA out of memory")
        resize(self, count)

    monkeypatch.setattr(Slots, "resize", cramped)
    first.state = SequenceState.DECODING
    assert store.reserve(second, 300) is None
    require_accounts(store, 1)
    assert len(store._rows[id(first)].blocks) == 3
