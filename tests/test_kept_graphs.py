"""Forwards that one run has captured are replayed in the next ones, as long as they compute the same."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specframe_std.graphs import captured_forward, captured_rounds, graph_cache
from specframe_std.graphs.graph_cache import UNCOLLECTED
from specframe_std.graphs.kept_graphs import ModelGraphs, settings
from specframe_testing import fakes, harness, zoo
from specframe_testing.device.captured_graphs import SimRecording
from specframe_testing.device.device_memory import MEMORY
from transformers import PreTrainedModel

from specframe import Pipeline
from specframe.contracts.model import PLAIN
from specframe.errors import SpecframeWarning

ASKED = harness.requests(harness.random_prompts((5, 1, 9, 3), 61), [8, 6, 9, 5], {7})


@pytest.fixture(autouse=True)
def _forwards_alone(on_sim: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have forwards alone captured: whole rounds are captured for one run."""
    monkeypatch.setattr(captured_rounds, "ROUNDS", 10**9)


def piped(target: PreTrainedModel | None = None, draft: Any = None, **options: Any) -> Pipeline:
    """Return a pipeline of fakes, whose models this test alone has."""
    target = target or fakes.fake_target()
    draft = fakes.fake_draft(target) if draft is None else draft
    pipe = harness.pipeline(target, draft, **{"batch_size": 2, "draft_length": 3, **options})
    pipe.held = target  # type: ignore[attr-defined]  # the harness holds the original of a copy weakly
    return pipe


def recorded(act: Callable[[], Any]) -> int:
    """Return how many forwards are captured as something is done."""
    before = SimRecording.made
    act()
    return SimRecording.made - before


def settled(pipe: Pipeline) -> None:
    """Decode until a run captures nothing."""
    for _ in range(captured_forward.EAGER + 3):
        made = recorded(lambda: harness.check(pipe, ASKED))
        if not made:
            return
    raise AssertionError(f"a later run of the same prompts has recorded {made} forwards")


KINDS: dict[str, dict[str, Any]] = {
    "chain": {},
    "plain": {"drafter": "none"},
    "static tree": {"drafter": "model,tree=static,branch=2/1", "draft_length": "auto"},
    "bitwise": {"bitwise": True},
    "lookup": {"drafter": "prompt-lookup"},
    "goodput": {"draft_length": "goodput"},
    "early exit": {"drafter": "early-exit,layers=1"},
    "layer skip": {"drafter": "layer-skip,skip=mlp:0"},
    "continuous": {"schedule": "continuous"},
    "checked": {"check": True},
}


@pytest.mark.wide
@pytest.mark.parametrize("kind", KINDS)
def test_later_runs_replay(kind: str) -> None:
    """Runs of the same shapes replay what earlier ones have captured, and are exact; goodput may come to new shapes."""
    options = KINDS[kind]
    target = (
        zoo.build("qwen3") if kind in ("bitwise", "early exit", "layer skip", "static tree") else fakes.fake_target()
    )
    draft = zoo.good_draft(target) if isinstance(target, type(zoo.build("qwen3"))) else fakes.fake_draft(target)
    pipe = piped(target, draft, **options)
    replays = SimRecording.replays
    made = [recorded(lambda: harness.check(pipe, ASKED)) for _ in range(captured_forward.EAGER + 2)]
    assert SimRecording.replays > replays
    if kind == "checked":  # a run with checks opens stores of its own
        assert made[-1] == made[0] > 0
    elif kind != "goodput":
        assert made[0]
        assert not made[-1], made


class Adapted(fakes.FakeModel):
    """A fake that turns its logits by as much as the active one of its adapters says."""

    active = "none"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.turns = {"none": 0, "other": 1}

    @functools.wraps(fakes.FakeModel.forward)
    def forward(self, *args: Any, **options: Any) -> Any:
        """Return the fake's output, turned."""
        output = super().forward(*args, **options)
        output.logits = output.logits.roll(self.turns[self.active], -1)
        return output


@pytest.mark.wide(but=["number inside"])
@pytest.mark.parametrize("change", ["text", "number inside"])
def test_settings_of_a_model(change: str) -> None:
    """Where a model computes with another number, as with another adapter, its forwards are captured anew."""
    config = fakes.fake_target().config
    target, other = Adapted(config).eval(), Adapted(config).eval()
    other.active = "other"
    pipe = piped(target, drafter="none")
    settled(pipe)
    if change == "text":
        pipe.target_model.active = "other"
    else:
        pipe.target_model.turns["none"] = 1
    for _ in range(3):
        found = [result.token_ids for result in harness.decode(pipe, ASKED)]
        assert found == [harness.expected(other, request)[0] for request in ASKED]


def test_weights_elsewhere() -> None:
    """A buffer in new memory has the forwards that read it captured anew; the old memory may be given back."""
    pipe = piped()
    settled(pipe)
    pipe.target_model.shifts_V = pipe.target_model.shifts_V.clone()
    gc.collect()
    assert recorded(lambda: [harness.check(pipe, ASKED) for _ in range(2)])


@pytest.mark.parametrize("name", ["weight", "running_mean"])
def test_weights_replaced_through_data(name: str) -> None:
    """A captured graph reads the memory of parameters and buffers, which is another one where their data was replaced."""
    module = torch.nn.BatchNorm1d(2)
    model: Any = SimpleNamespace(module=module)
    kept = ModelGraphs(model, PLAIN, lambda *_: None)  # type: ignore[arg-type]
    assert kept.suits(model, PLAIN)
    held = getattr(module, name)
    held.data = held.data.clone()
    assert not kept.suits(model, PLAIN)


@pytest.mark.wide(but=["register_forward_pre_hook"])
@pytest.mark.parametrize("kind", ["register_forward_pre_hook", "register_forward_hook"])
def test_another_hook_is_another_setting(kind: str) -> None:
    """What a module calls before or after its forward distinguishes it from what it was, where one takes another's place."""
    module, hooks = torch.nn.Linear(2, 2), [functools.partial(pre_hook, [number]) for number in range(2)]
    held = getattr(module, kind)(hooks[0])
    before = settings(module)
    held.remove()
    getattr(module, kind)(hooks[1])
    assert settings(module) != before


def pre_hook(called: list[int], *_: Any) -> None:
    """Note the call."""
    called.append(1)


class Fails(harness.Feeds):
    """Raises at a round."""

    left = 10**9

    def round(self, report: Any) -> None:
        """Count down."""
        self.left -= 1
        if not self.left:
            raise RuntimeError("on purpose")


@pytest.mark.wide
def test_a_run_that_failed_leaves_nothing() -> None:
    """After an error stores are opened anew, and captured graphs with them."""
    failing = Fails()
    pipe = piped(observers=[failing])
    settled(pipe)
    failing.left = 2
    with pytest.raises(Exception, match="on purpose"):
        harness.decode(pipe, ASKED)
    assert recorded(lambda: settled(pipe))


@pytest.mark.wide
def test_a_run_without_memory() -> None:
    """Where memory runs out in a run that replays, the batch is halved and all goes on, exactly."""
    pipe = piped(zoo.build("qwen3"), zoo.good_draft(zoo.build("qwen3")), batch_size=4)
    asked = harness.requests(harness.random_prompts((5, 1, 9, 3), zoo.VOCABULARY), 12)
    for _ in range(3):
        harness.check(pipe, asked)
    gc.collect()
    MEMORY.peak[0] = MEMORY.used[0]
    harness.check(pipe, asked)
    longer = harness.requests(harness.random_prompts((9, 3, 5, 2), zoo.VOCABULARY), 24)
    with MEMORY.limited(MEMORY.peak[0]), pytest.warns(SpecframeWarning, match="memory ran out"):
        harness.check(pipe, longer)
    for _ in range(2):
        harness.check(pipe, asked)


def test_recordings_used_longest_ago_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured graph that is used outlives one that was made later; a shape is new when it comes up and when it is captured."""
    monkeypatch.setattr(graph_cache, "MOST", 2)
    cache, made = graph_cache.GraphCache(graph_cache.EagerGraph), list[str]()

    def use(name: str, eager: int = 1) -> None:
        cache.take((name,), lambda: (made.append(name), tuple), eager)

    for name in "aabbaccabb":
        use(name)
    assert made == ["a", "b", "c", "b"]
    found = list[int]()
    for _ in range(5):
        before = cache.new
        use("d", eager=3)
        found.append(cache.new - before)
    assert found == [1, 0, 0, 1, 0]


def test_collection_stays_off_where_it_was() -> None:
    """What a captured graph switches off is switched on afterwards only where it was on."""
    for switch in (gc.disable, gc.enable):
        was = gc.isenabled()
        try:
            switch()
            before = gc.isenabled()
            with UNCOLLECTED:
                assert not gc.isenabled()
            assert gc.isenabled() == before
        finally:
            (gc.enable if was else gc.disable)()


def test_prompts_that_are_captured_leave_the_rows_before_alone() -> None:
    """A prompt that joins in the second row is replayed by the graph that has read two: the first row, another's by then, stays."""
    asked = harness.requests(harness.random_prompts((8, 8, 8, 8), 61, seed=2), [3, 8, 16, 6])
    pipe = piped(draft_length=1, schedule="continuous,wait=0", rounds="synchronous")
    for _ in range(4):
        harness.check(pipe, asked)
