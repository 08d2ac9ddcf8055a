"""Kept states where memory runs out, a row is aborted or an engine is closed while one is kept or begun with: no copy is wrong."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from specframe_std.kv.kept_states import KeptStates
from specframe_std.kv.paged import PagedStore
from specframe_testing import fakes, harness, states

from specframe.engine.engine_clock import HandClock
from specframe.engine.local_engine import LocalEngine
from specframe.pipeline import Pipeline
from specframe.text.sampling import Sampling

TARGET = states.fake_state_target()
COMMON = harness.random_prompts([14], 61, seed=4)[0]
ASKED = harness.requests([[*COMMON, 5, 6], [3], [*COMMON, 7], [*COMMON[:9], 8], [*COMMON, 5]], [5, 3, 6, 4, 5])
MEMBERS = ("begin_after", "keep_after", "arrange", "_begin", "begin", "_note", "commit")
"""What is called while copies are found, planned, begun with, taken and kept."""

COLLECT = gc.collect

pytestmark = pytest.mark.filterwarnings("ignore:the device's memory ran out")


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gc, "collect", lambda: 0)
    with states.known():
        yield


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[KeptStates]:
    """Note every store of states that is opened."""
    found, init = list[KeptStates](), KeptStates.__init__
    monkeypatch.setattr(KeptStates, "__init__", lambda self, *given: (found.append(self), init(self, *given))[1])
    return found


def pipeline(kv: str = "", **options: Any) -> Pipeline:
    """Return a pipeline whose stores keep few states, so that they are given up for others."""
    kv = f"paged,block=2,share=on,states=3,stride=4{kv}"
    return harness.pipeline(TARGET, fakes.fake_draft(TARGET), kv=kv, **{"batch_size": 3, "draft_length": 3, **options})


def acting(member: str, at: int, act: Callable[[], None], late: bool) -> tuple[Any, list[int]]:
    """Return a member of a store of states that does something before or after one of its calls, and the calls."""
    usual, calls = getattr(KeptStates, member), list[int]()

    def called(self: KeptStates, *given: Any) -> Any:
        calls.append(1)
        acts = len(calls) == at
        if acts and not late:
            act()
        found = usual(self, *given)
        if acts and late:
            act()
        return found

    return called, calls


def out_of_memory() -> None:
    """Run out of memory."""
    raise torch.OutOfMemoryError("CUDA out of memory")


def waits(store: KeptStates) -> bool:
    """Return whether a row waits to begin with a copy."""
    return any(one.begins for sequence, one in store._reading.items() if not sequence.gone)


def assert_numbered(opened: list[KeptStates]) -> None:
    """Assert that every copy has one number, and that no row waits to begin with one.

    A sequence that was never admitted may be in the frames of the error that kept it out, until garbage is collected.
    """
    assert opened
    for store in opened:
        assert sorted([*store._free, *store._number.values(), *store._coming.values()]) == [*range(3)]
        if waits(store):
            COLLECT()
        assert not waits(store)


@pytest.mark.wide(but=["_note-after"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("member", MEMBERS)
def test_memory_that_runs_out(
    member: str, late: bool, opened: list[KeptStates], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any call tokens are the reference's, and so are those of a later run, which begins with the copies that there are."""
    at = 0
    while True:
        at += 1 if at < 4 else 5
        opened.clear()
        pipe = pipeline()
        called, calls = acting(member, at, out_of_memory, late)
        with monkeypatch.context() as patched:
            patched.setattr(KeptStates, member, called)
            harness.check(pipe, ASKED)
        harness.check(pipe, ASKED)
        assert_numbered(opened)
        if len(calls) < at:
            break
    assert at > 1, "never called"


@pytest.mark.wide
@pytest.mark.parametrize("gone", [0, 2, 3, None])
@pytest.mark.parametrize("member", MEMBERS)
def test_aborts_and_a_close(
    member: str, gone: int | None, opened: list[KeptStates], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is aborted while a state is kept or begun with ends once; the others, and a later run, have their tokens."""
    wanted = {one.index: harness.expected(TARGET, one)[0] for one in ASKED}
    for at in (1, 2, 3, 5, 9):
        pipe, held = pipeline(), list[Any]()

        def act(held: list[Any] = held) -> None:
            (engine,) = held
            held.append(engine.close() if gone is None else engine.abort((gone, 0)))

        called, _ = acting(member, at, act, late=True)
        with monkeypatch.context() as patched:
            patched.setattr(KeptStates, member, called)
            engine = LocalEngine(pipe.recipe, pipe.parts, (), HandClock(), pipe.executor)
            for one in ASKED:
                engine.add(one)
            held.append(engine)
            ended = dict[int, list[int]]()
            while not engine.idle:
                report = engine.step()
                ended |= {one.request.index: one.token_ids for one in (report.finished if report else ())}
        engine.close()
        if gone is not None:
            left = held[1] if len(held) > 1 else None
            if left is not None:
                assert gone not in ended
                ended[gone] = wanted[gone]
            assert ended == wanted
        harness.check(pipe, ASKED)
        assert_numbered(opened[-2:])


# ---- who is admitted -----------------------------------------------------------------------------------------------


@pytest.mark.wide
@pytest.mark.parametrize("place", [1, 2, 4])
def test_samples_of_a_kept_state_where_memory_runs_out(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks of a row that began with a copy draw what they draw where memory suffices."""
    how, prompts = Sampling(temperature=40.0, samples=3), [one.prompt_ids for one in ASKED]
    free = pipeline(",blocks=200", accept="gumbel", batch_size=8)
    wanted = [one.token_ids for one in free.generate(prompts, 5, sampling=how)]
    for member in ("_begin", "remember", "_note"):
        pipe = pipeline(accept="gumbel", batch_size=6)
        assert [one.token_ids for one in pipe.generate(prompts, 5, sampling=how)] == wanted
        called, _ = acting(member, place, out_of_memory, late=False)
        with monkeypatch.context() as patched:
            patched.setattr(KeptStates, member, called)
            assert [one.token_ids for one in pipe.generate(prompts, 5, sampling=how)] == wanted
        assert [one.token_ids for one in pipe.generate(prompts, 5, sampling=how)] == wanted


def ran_out(share: str, blocks: int) -> int:
    """Return how often memory ran out for prompts that begin alike, without a copy of a state to begin with."""
    pipe = harness.pipeline(TARGET, kv=f"paged,block=2,states=0,share={share},blocks={blocks}", batch_size=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            harness.check(pipe, harness.requests([[*COMMON, 5], [*COMMON, 6], [*COMMON, 7], [*COMMON[:9], 3]], 6))
    return sum("gives its memory back" in str(one.message) for one in caught)


@pytest.mark.wide(but=["21"])
@pytest.mark.parametrize("blocks", [12, 15, 21, 27])
def test_blocks_that_are_read_again_are_counted_when_a_row_is_admitted(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that a row finds and has no state for are no use to it: it gets its own, and no more rows than fit without."""
    made, fit = list[int](), PagedStore._fit

    def fitted(self: PagedStore, *given: Any) -> None:
        fit(self, *given)
        made.append(self.blocks.made)

    monkeypatch.setattr(PagedStore, "_fit", fitted)
    assert ran_out("on", blocks) <= ran_out("off", blocks)
    assert max(made) <= blocks
