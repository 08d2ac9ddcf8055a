"""Heads whose rows be preempted, wait on the host and come back: tokens and drafts are those of rows that never was preempted."""

from __future__ import annotations

import functools
import gc
import tempfile
from pathlib import Path
from typing import Any

import pytest
from specframe_std.kv.paged import PagedStore
from specframe_std.kv.slot_tables import Slots
from specframe_testing import harness, zoo
from specframe_testing.heads import block_heads, checkpoints, stepwise
from specframe_testing.heads.scripted import Drafted, steered

from specframe.contracts.requests import Request
from specframe.engine import memory_limits
from specframe.engine.engine_clock import HandClock
from specframe.engine.local_engine import LocalEngine
from specframe.pipeline import Pipeline
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry

TARGET = zoo.build("llama")
SAVE: dict[str, Any] = {
    "eagle": lambda folder: checkpoints.eagle3(folder, TARGET, drafted=70, layers=1),
    "medusa": lambda folder: stepwise.overfitted(folder, "medusa", TARGET, [[1, 2]], tokens=4, steps=1),
    "hydra": lambda folder: stepwise.overfitted(folder, "hydra++", TARGET, [[1, 2]], tokens=4, steps=1),
    "dflash": lambda folder: block_heads.speculators(folder, TARGET, drafted=70),
    "peagle": lambda folder: block_heads.peagle(folder, TARGET, drafted=70),
}
"""What saves a head for the target, by its drafter."""
ASKED = harness.requests(harness.random_prompts([9, 5, 11, 7], zoo.VOCABULARY, seed=3), [22, 26, 18, 24])
ROOMY, FEW = "paged,block=4", "paged,block=4,blocks=23,host=1MB"
TIGHT = "paged,block=4,blocks=18,host=1MB"
"""Blocks for all rows, for fewer than all of them at their ends, and for two."""
HEADS = [
    pytest.param(
        name,
        shape,
        marks=() if (name, shape) in (("eagle", ",tree=chain"), ("dflash", ",tree=chain")) else pytest.mark.slow,
    )
    for name in SAVE
    for shape in (",tree=chain", ",tree=dynamic,nodes=6")
]

pytestmark = pytest.mark.filterwarnings("ignore:the device's memory ran out")


@functools.cache
def saved(name: str) -> Path:
    """Return the folder of a head, the same one every time."""
    folder = Path(tempfile.mkdtemp(prefix="head")) / name
    SAVE[name](folder)
    return folder


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[PagedStore]:
    """Note every store that is opened."""
    opened, init = list[PagedStore](), PagedStore.__init__
    monkeypatch.setattr(PagedStore, "__init__", lambda self, *given: (opened.append(self), init(self, *given))[1])
    return opened


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows in again soon, and collect no garbage, which takes as long as there are objects of other tests."""
    monkeypatch.setattr(memory_limits, "CALM_FOR_ONE", 3)
    monkeypatch.setattr(gc, "collect", lambda: 0)


def some_right(place: int) -> bool:
    """Return whether the token at a place of a draft is right: runs of none to five."""
    return place % 7 not in (0, 3) and place % 5 != 4


def pipe_of(name: str, shape: str, kv: str, **options: Any) -> tuple[Pipeline, dict[tuple[int, ...], Drafted]]:
    """Return a pipeline with a head, some of whose drafted tokens are made right, and what takes its own drafts."""
    drafts: dict[tuple[int, ...], Drafted] = {}

    def truth(request: Request) -> list[int]:
        return harness.continuation(TARGET, request.prompt_ids, 40)

    made: Any = strategy(registry(), "drafter", f"{name},checkpoint={saved(name)}{shape}")
    length = {"draft_length": 3} if shape == ",tree=chain" else {"draft_length": "auto"}
    pipe = harness.pipeline(
        TARGET, steered(made, drafts, truth, some_right), kv=kv, **{"batch_size": 4, **length, **options}
    )
    return pipe, drafts


def assert_nothing_left(stores: list[PagedStore]) -> None:
    """Assert that no store has a row, a block with a user, or a copy on the host."""
    assert stores
    for store in stores:
        assert not store._rows
        assert store.blocks.used == 0
        assert store.host is None or not store.host._kept


@pytest.mark.wide(but=["eagle-,tree=chain"])
@pytest.mark.parametrize(("name", "shape"), HEADS)
def test_an_abort_and_a_stop_while_rows_are_on_the_host(
    name: str, shape: str, stores: list[PagedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is aborted on the host leaves nothing there, the others go on, and a stop leaves nothing at all."""
    for closes in ("", "at once", "while others decode"):
        stores.clear()
        pipe, _ = pipe_of(name, shape, TIGHT)
        engine = LocalEngine(pipe.recipe, pipe.parts, (), HandClock(), pipe.executor)
        for one in ASKED:
            engine.add(one)
        ended, gone = dict[int, list[int]](), dict[int, list[int]]()
        while not engine.idle:
            if (report := engine.step()) is not None:
                ended |= {one.request.index: one.token_ids for one in report.finished}
            waiting = [*engine._pool._returned]  # keys: copies stay as long as somebody has their sequence
            if waiting and not gone and (engine._pool.live or "while" not in closes):
                assert any(store.host and store.host.nbytes for store in stores)
                if closes:
                    with monkeypatch.context() as patched:  # nothing more goes there for nobody
                        patched.setattr(Slots, "to_host", None)
                        engine.close()
                    break
                aborted = engine.abort(waiting[0])
                assert aborted is not None
                gone[aborted.request.index] = aborted.token_ids
                assert not any(store.host and store.host.count(aborted) for store in stores)
        if not closes:
            ((index, tokens),) = gone.items()
            assert tokens == harness.expected(TARGET, ASKED[index])[0][: len(tokens)]
            assert ended == {one.index: harness.expected(TARGET, one)[0] for one in ASKED if one.index != index}
            engine.close()
        assert_nothing_left(stores)
