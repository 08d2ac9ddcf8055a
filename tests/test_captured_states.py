"""Forwards of layers that keep a state are captured, and what their states take in as well: tokens are those of the reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import architectures
import pytest
import torch
from planting import noting
from specframe_std.graphs import captured_forward
from specframe_std.graphs.captured_states import CapturedStates
from specframe_std.graphs.kept_graphs import StoreGraphs
from specframe_std.states.row_states import RowStates
from specframe_testing import fakes, harness, suite_device, zoo
from specframe_testing.device.captured_graphs import SimRecording, tape
from specframe_testing.device.counters import COUNTERS, LAUNCH
from transformers import PreTrainedModel
from turns import ByTurns

from specframe import Pipeline
from specframe.contracts.drafts import Budget
from specframe.contracts.model import ForwardOptions
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.errors import ContractError, SpecframeWarning
from specframe.model.state_layers import ModuleState
from specframe.text.sampling import Sampling

LENGTHS = (5, 1, 17, 9, 1, 8)
NEW = [12, 9, 14, 13, 7, 10]

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"drafter": "none"},
    "chains": {"drafter": "prompt-lookup,ngram=1"},
    "rows that draft unequally": {"drafter": "prompt-lookup,ngram=1", "draft_length": fakes.Uneven(Budget(3))},
    "mixed": {"drafter": "prompt-lookup,ngram=1", "schedule": "continuous,piece=4,mixed=on"},
    "realigned": {"drafter": "prompt-lookup,ngram=1", "align": "eqspec", "kv": "slab"},
    "bitwise": {"drafter": "none", "bitwise": True},
    "checked": {"drafter": "prompt-lookup,ngram=1", "check": True},
}
ARCHITECTURES = ("qwen3_5_text", "nemotron_h", "lfm2", "zaya", "jamba", "minimax", "kimi_linear", "falcon_h1")


pytestmark = pytest.mark.usefixtures("on_sim")


def asked_of(target: PreTrainedModel, seed: int = 5) -> list[Request]:
    """Return ragged requests, more than there are rows."""
    return harness.requests(harness.random_prompts(LENGTHS, target.config.get_text_config().vocab_size, seed), NEW)


def piped(target: PreTrainedModel, draft: Any = None, **options: Any) -> Pipeline:
    """Return a pipeline of three rows."""
    plain = options.get("drafter") == "none"
    return harness.pipeline(target, draft, batch_size=3, **{**({} if plain else {"draft_length": 3}), **options})


@pytest.mark.wide(but=["qwen3_5_text-plain"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[pytest.mark.slow] * (name not in ("qwen3_5_text", "falcon_h1")))
        for name in ARCHITECTURES
        for kind in KINDS
        if (name, kind) != ("nemotron_h", "checked")  # the simulated device has no products of its two precisions
    ],
)
def test_every_kind_of_state(name: str, kind: str) -> None:
    """Rows that come, go and accept unlike numbers of tokens have their own states, in the run that captures and in later ones."""
    target = architectures.build(name)
    pipe, replays = piped(target, **KINDS[kind]), SimRecording.replays
    for seed in (5, 6):
        harness.check(pipe, asked_of(target, seed))
    assert SimRecording.replays > replays + 20 or kind == "realigned"


class Launches(harness.Feeds):
    """Counts what the host launches in each round."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: list[int] = []

    def round(self, report: RoundReport) -> None:
        """Count up to here."""
        self.totals.append(COUNTERS.totals[LAUNCH])


@pytest.mark.wide(but=["none"])
@pytest.mark.parametrize("drafter", ["none", "prompt-lookup,ngram=1"])
def test_launches_do_not_grow_with_layers(drafter: str) -> None:
    """A round of a captured forward takes as many launches whatever the number of layers, states and what they take in included."""
    found = []
    for layers in (2, 4):
        target = architectures.build("falcon_h1", num_hidden_layers=layers)
        counted = Launches()
        pipe = piped(target, drafter=drafter, observers=[counted])
        harness.decode(pipe, asked_of(target)[:3])
        counted.totals.clear()
        harness.decode(pipe, asked_of(target)[:3])
        rounds = sorted(after - before for before, after in zip(counted.totals, counted.totals[1:], strict=False))
        found.append(rounds[0])
    assert found[0] == found[1] < 80


@pytest.mark.wide
@pytest.mark.parametrize("right", [None, 0, {0: 3, 1: 0, 2: 2, 3: 1, 4: 3, 5: 2}], ids=["all", "none", "by row"])
def test_trees_are_committed_along_their_paths(right: Any) -> None:
    """The state of a row takes in the accepted path of a tree, in its order, from a graph that serves every path."""
    target = architectures.build("qwen3_5_text")
    asked = asked_of(target)
    harness.check(piped(target, fakes.ScriptedTree(harness.truth(target, asked), right)), asked)


@pytest.mark.wide
def test_samples_begin_from_copied_states() -> None:
    """Samples of one prompt begin from a copy of its state, which stays where graphs read it."""
    target = architectures.build("qwen3_5_text")
    prompts = [one.prompt_ids for one in asked_of(target)[:3]]
    found = []
    for graphs in ("off", "on"):
        pipe = piped(target, drafter="prompt-lookup,ngram=1", accept="gumbel", graphs=graphs)
        for _ in range(2):
            results = pipe.generate(prompts, 9, sampling=Sampling(temperature=1.0, samples=3))
            found.append([one.token_ids for one in results])
    assert found[0] == found[2]
    assert found[1] == found[3]


@pytest.mark.parametrize("name", ["lfm2", pytest.param("qwen3_5_text", marks=pytest.mark.slow)])
def test_draft_models_with_states(name: str) -> None:
    """A draft model that is the target is accepted whole, and its chain of forwards, of any length, is launched as graphs."""
    target, counted = architectures.build(name), Launches()
    lengths = ByTurns(3, 3, 1, 2, 3, 3)
    pipe = piped(target, architectures.build(name), draft_length=lengths, observers=[counted])
    for seed in (5, 6, 7):
        prompts = harness.random_prompts((5, 7, 9), zoo.VOCABULARY, seed=seed)
        counted.totals.clear()
        results = harness.check(pipe, harness.requests(prompts, 40))
    assert all(one.metrics.num_accepted_draft_tokens >= one.metrics.num_draft_tokens - 3 for one in results)
    rounds = [after - before for before, after in zip(counted.totals, counted.totals[1:], strict=False)]
    assert max(rounds) < 100


@pytest.mark.parametrize(
    "options", [{}, {"align": "eqspec", "kv": "slab"}, {"schedule": "continuous,piece=4,mixed=on"}], ids=str
)
def test_draft_models_that_are_mostly_wrong(options: dict[str, Any]) -> None:
    """What was rejected of a chain leaves no trace in the draft model's states: the same is accepted as without graphs."""
    target, counts = architectures.build("falcon_h1"), []
    for graphs in ("off", "on"):
        draft = zoo.good_draft(target)
        pipe = piped(target, draft, graphs=graphs, draft_length=ByTurns(3, 1, 4), rounds="synchronous", **options)
        results = [one for seed in (5, 6) for one in harness.check(pipe, asked_of(target, seed))]
        counts.append([one.metrics.acceptance_histogram for one in results])
    assert counts[0] == counts[1]


@pytest.mark.wide(but=["the graph of a commit"])
@pytest.mark.parametrize("place", ["the forward", "the graph of a forward", "the graph of a commit"])
def test_memory_that_runs_out_as_states_are_captured(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory for a graph, of a forward or of what states take in, all goes on without, exactly."""
    member = "take_in" if place == "the graph of a commit" else "reading"
    usual, calls = getattr(RowStates, member), list[int]()

    def lacking(self: RowStates, *given: Any) -> Any:
        if member == "reading" or given[0] is not self._fed:
            calls.append(1)
            if len(calls) == (2 if place == "the graph of a forward" else 1):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return usual(self, *given)

    target = architectures.build("falcon_h1")
    pipe = piped(target, drafter="prompt-lookup,ngram=1")
    monkeypatch.setattr(RowStates, member, lacking)
    with pytest.warns(SpecframeWarning, match="not captured as CUDA graphs"):
        harness.check(pipe, asked_of(target))
    harness.check(pipe, asked_of(target))


@pytest.mark.parametrize(
    ("owner", "member", "error"),
    [
        pytest.param(ModuleState, "forward", ContractError, id="a forward"),
        pytest.param(RowStates, "take_in", RuntimeError, id="a commit"),
        pytest.param(CapturedStates, "_go_on", RuntimeError, id="a chain"),
    ],
)
def test_what_works_and_cannot_be_captured_is_done_once(
    owner: Any, member: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward and a commit have worked before they are captured, and hold where that fails; a chain's third forward that has
    failed begins again with the states that it began with."""
    usual = getattr(owner, member)

    def done(self: Any, *given: Any) -> Any:
        found = usual(self, *given)
        fails = tape() is not None if owner is not CapturedStates else given[0]._before is not None
        if fails:
            raise error("operation not permitted")
        return found

    monkeypatch.setattr(owner, member, done)
    target = architectures.build("falcon_h1")
    asked = harness.requests(harness.random_prompts((5, 7, 9), zoo.VOCABULARY), 31)
    with pytest.warns(SpecframeWarning, match="not captured as CUDA graphs: .*operation not permitted"):
        results = harness.check(piped(target, architectures.build("falcon_h1"), draft_length=4), asked)
    assert [one.metrics.acceptance_histogram for one in results] == [{4: 6}] * 3
    if owner is not CapturedStates:
        with pytest.warns(SpecframeWarning, match="operation not permitted"):
            harness.check(piped(target, drafter="prompt-lookup,ngram=1"), asked)


def test_memory_that_runs_out_between_two_layers_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of which some layers' states have taken in tokens, and others not, is discarded: no state takes a token in twice."""
    take_in, hold, inside, failed = RowStates.take_in, RowStates._hold, list[int](), list[int]()

    def taking(self: RowStates, *given: Any) -> Any:
        inside[:] = [0] if given[0] is not self._fed else []
        try:
            return take_in(self, *given)
        finally:
            inside.clear()

    def holding(self: RowStates, after: Any) -> None:
        if inside and not failed:
            inside[0] += 1
            if inside[0] == 2:
                failed.append(1)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        hold(self, after)

    monkeypatch.setattr(RowStates, "take_in", taking)
    monkeypatch.setattr(RowStates, "_hold", holding)
    target = architectures.build("falcon_h1")
    with pytest.warns(SpecframeWarning, match="memory ran out"):
        harness.check(piped(target, drafter="prompt-lookup,ngram=1"), asked_of(target))
    assert failed


@pytest.mark.parametrize("drafts", [False, True], ids=["target", "draft model"])
def test_no_plan_of_memory_has_what_graphs_keep(drafts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory has a bound, forwards of a target or a draft model with states are not captured."""
    made = noting(monkeypatch, RowStates, "__init__", lambda _, states, *given: states)
    hybrid, other = architectures.build("lfm2"), zoo.build("qwen3")
    with suite_device.running_on("cpu"):
        for memory in (None, "1 GB"):
            made.clear()
            target, draft = (other, hybrid) if drafts else (hybrid, None)
            pipe = piped(target, draft, graphs="on", memory=memory, **({} if drafts else {"drafter": "none"}))
            harness.check(pipe, asked_of(other)[:3])
            # a plan tries "meta"
            assert any(one.fixed for one in made if one._device.type == "cpu") == (memory is None)


def test_states_of_others() -> None:
    """States of others' stores are in no graphs."""
    model: Any = SimpleNamespace(state_layers={0: None})
    assert StoreGraphs().of(model, ForwardOptions(states=cast(RowStates, object()))) is None


@pytest.mark.wide
def test_graphs_of_states_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With graphs asked for where there are none, forwards read the same buffers, and are exact."""
    monkeypatch.setattr(captured_forward, "EAGER", 1)
    target = architectures.build("qwen3_5_text")
    with suite_device.running_on("cpu"):
        harness.check(piped(target, drafter="prompt-lookup,ngram=1", graphs="on"), asked_of(target))
