"""What sequences that was preempted had cached goes to the host's memory, comes back, and is not read again."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import torch
from specframe_std.kv.paged import PagedStore
from specframe_std.kv.slot_tables import Slots
from specframe_testing import fakes, harness, suite_device
from specframe_testing.device.rounds import watched_rounds

from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.engine.engine_clock import HandClock
from specframe.engine.local_engine import LocalEngine
from specframe.pipeline import Pipeline

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
ASKED = harness.requests(harness.random_prompts([9] * 4, 61), 30)
FEW = "paged,block=4,blocks=26"
"""Blocks for fewer than four of these sequences at their ends."""

pytestmark = pytest.mark.filterwarnings("ignore:the device's memory ran out")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collect no garbage, which takes as long as there are objects of other tests."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[PagedStore]:
    """Note every store that is opened."""
    opened, init = list[PagedStore](), PagedStore.__init__
    monkeypatch.setattr(PagedStore, "__init__", lambda self, *given: (opened.append(self), init(self, *given))[1])
    return opened


class Fed(Observer):
    """Counts the tokens that the target is fed."""

    def __init__(self) -> None:
        self.tokens = 0

    def fed(self, model: str, tokens: int, computed: int) -> None:
        """Count those of a forward."""
        self.tokens += tokens if model == "target" else 0


def pipeline(kv: str, draft: Any = DRAFT, **options: Any) -> Pipeline:
    """Return a pipeline of the fakes."""
    return harness.pipeline(TARGET, draft, kv=kv, **{"batch_size": 4, "draft_length": 3, **options})


def fed(kv: str, draft: Any = None) -> int:
    """Return how many tokens the target is fed; those decoded are the reference's."""
    counted = Fed()
    harness.check(pipeline(kv, draft, observers=[counted]), ASKED)
    return counted.tokens


@pytest.mark.wide
def test_who_comes_back_is_not_read_again() -> None:
    """Of a sequence that was preempted its last token alone is fed again; without the host's memory all of them are."""
    once, again, kept = (fed(kv) for kv in ("paged,block=4", FEW, f"{FEW},host=1MB"))
    assert once == sum(len(one.prompt_ids) + 29 for one in ASKED)
    assert again > once + 60
    assert kept - once < 12
    assert kept - once < (again - once) / 8


WAYS: list[dict[str, Any]] = [
    {"drafter": "model,tree=dynamic,nodes=8"},
    {"schedule": "continuous,piece=4,mixed=on"},
    {"align": "eqspec"},
    {"check": True},
    {"drafter": "prompt-lookup"},
]


@pytest.mark.wide(but=["{'drafter': 'prompt-lookup'}"])
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_tokens_are_exact(options: dict[str, Any], stores: list[PagedStore]) -> None:
    """Whatever was drafted when a sequence was preempted, and where slots are not places, so that nothing is kept."""
    draft = None if options.get("drafter") == "prompt-lookup" else DRAFT
    harness.check(pipeline(f"{FEW},host=1MB", draft, **options), ASKED)
    assert all(store.host is not None and not store.host.nbytes for store in stores)


def begun(kv: str, *observers: Observer, steps: int = 6) -> LocalEngine:
    """Return an engine that decodes four sequences."""
    pipe = pipeline(kv)
    engine = LocalEngine(pipe.recipe, pipe.parts, observers, HandClock(), pipe.executor)
    engine.make_room(60)
    for one in ASKED:
        engine.add(one)
    for _ in range(steps):
        engine.step()
    return engine


def test_all_copies_together_have_the_bytes(stores: list[PagedStore]) -> None:
    """The host's memory is for all sequences that wait, not for each."""
    pool = begun("paged,block=4,host=400")._pool
    for one in [*pool.live]:
        pool.preempt(one)
    for store in stores:
        assert 388 < store.host.nbytes <= 400


def test_a_device_without_memory_for_copies_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot bring slots together sequences are read again, at the way there and at the way back."""
    for name in ("to_host", "from_host"):
        with monkeypatch.context() as patched:
            patched.setattr(Slots, name, lambda *given: out_of_memory())
            harness.check(pipeline(f"{FEW},host=1MB"), ASKED)


def out_of_memory() -> None:
    """Run out of memory."""
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_the_host_never_waits_for_copies() -> None:
    """On a device as strict as CUDA neither a steady round nor one in which sequences be preempted or come back has a wait more."""
    asked = [Request(one.index, one.prompt_ids, 12) for one in ASKED]
    with suite_device.running_on("sim"), watched_rounds() as watched:
        pipe = pipeline("paged,block=4,blocks=16,host=1MB", observers=[watched])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                watched.rounds.clear()  # a model is tried out in its first run
                harness.check(pipe, asked)
        assert any("gives its memory back" in str(one.message) for one in caught)
        for one in watched.rounds:
            assert one.waits <= 1, f"expected 1 wait per round, got {one}"
        steady = [one.copies for one in watched.steady]
        assert steady
        assert max(steady) <= 4, "the table alone is sent"


@pytest.mark.wide
@pytest.mark.cuda
def test_what_comes_back_on_cuda_is_exact() -> None:
    """Page-locked memory is written and read in the order of what the device does."""
    target = fakes.fake_target().cuda()
    draft = fakes.fake_draft(target).cuda()
    for more in ("", ",dtype=fp8,draft_dtype=int8"):
        pipe = harness.pipeline(target, draft, kv=f"{FEW},host=1MB{more}", batch_size=4, draft_length=3)
        with pytest.warns(RuntimeWarning, match="gives its memory back"):
            harness.check(pipe, ASKED)
