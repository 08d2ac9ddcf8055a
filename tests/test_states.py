"""Layers that keep a state: whatever is rejected, moved, forked, put back or read in chunks, it holds the row's own tokens."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from planting import opened
from products import crossed
from specframe_std.states import row_states as forward_states
from specframe_std.states.row_states import RowStates
from specframe_testing import fakes, harness, standard, states
from specframe_testing.conformance import StateKindSuite
from specframe_testing.conformance.decoding_suite import RIGHT, usual_requests
from test_releases import Failing
from turns import ByTurns

from specframe.contracts.drafts import Block
from specframe.contracts.requests import Request
from specframe.contracts.round import Kept, Sequence
from specframe.contracts.states import LayerState
from specframe.engine import local_engine as engine_module
from specframe.engine.local_engine import LocalEngine
from specframe.errors import CompositionError, ContractError, ModelError, SpecframeError
from specframe.model.runner import ModelRunner
from specframe.model.state_layers import state_layers
from specframe.plugins.registry import add_entry, registry
from specframe.text.sampling import Sampling

TARGET = states.fake_state_target()


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    """Have the fake kind of state registered."""
    with states.known():
        yield


def scripted(asked: list[Request], right: fakes.Right = RIGHT["by-turns"]) -> fakes.ScriptedDrafter:
    """Return a drafter whose drafts are right for ``right`` tokens."""
    return fakes.ScriptedDrafter(harness.truth(TARGET, asked), right)


@pytest.mark.wide(but=["test_chains[ragged-3]"])
class TestFakeHash(StateKindSuite):
    """The fake kind passes the suite of kinds."""

    temperature = 40.0

    def model(self) -> states.FakeStateModel:
        """Return the fake target."""
        return TARGET


def test_a_draft_model_with_states_reads_along() -> None:
    """In rounds that draft nothing the draft model reads what was generated: its drafts after them are those of the target."""
    asked = harness.requests(harness.random_prompts([5, 1, 9, 4], 61), [20, 9, 14, 17])
    pipe = harness.pipeline(TARGET, states.fake_state_target(), batch_size=2, draft_length=ByTurns(0, 0, 0, 3))
    results = harness.check(pipe, asked)
    drafted = sum(one.metrics.num_draft_tokens for one in results)
    assert 0 < drafted == sum(one.metrics.num_accepted_draft_tokens for one in results)


NEW = 12


def open_engine(verifier: Any = "chain", **options: Any) -> tuple[LocalEngine, list[Request]]:
    """Return an engine of a target and a draft model with states, and the requests that wait in it."""
    asked = harness.requests(harness.random_prompts([4, 7, 2, 9, 5], 61), NEW)
    how = {"batch_size": 3, "draft_length": 3, "schedule": "continuous,piece=4", "verify": verifier} | options
    pipe = harness.pipeline(TARGET, fakes.fake_draft(TARGET), **how)
    return opened(pipe, asked), asked


def stepped(engine: LocalEngine, steps: int | None = None) -> dict[int, Sequence]:
    """Step an engine until it is idle, or so often; return the sequences that have ended, by index."""
    ended: dict[int, Sequence] = {}
    while not engine.idle and steps != 0:
        steps = None if steps is None else steps - 1
        if (report := engine.step()) is not None:
            ended |= {one.request.index: one for one in report.finished}
    return ended


def assert_the_references(ended: dict[int, Sequence], asked: list[Request]) -> None:
    """Assert that sequences have the tokens of the reference decoder."""
    for index, one in ended.items():
        assert one.token_ids == harness.continuation(TARGET, asked[index].prompt_ids, NEW), index


@pytest.mark.wide
@pytest.mark.parametrize(("steps", "align"), crossed(range(5), ["ragged", "eqspec", "rollback"]))
def test_aborted_rows_leave_nothing(steps: int, align: str) -> None:
    """Whoever is aborted after whichever step: who takes the row begins with an empty state, and the others go on."""
    for gone in range(5):
        engine, asked = open_engine(align=align)
        ended = stepped(engine, steps)
        aborted = engine.abort((gone, 0)) is not None
        ended |= stepped(engine)
        assert len(ended) == len(asked) - aborted
        assert_the_references(ended, asked)


@pytest.mark.wide
@pytest.mark.parametrize("way", ["halved", "one by one", "error"])
@pytest.mark.parametrize("steps", range(5))
def test_faults_inside_any_step(steps: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a lack of memory and an error, once the target was fed, states are those of the kept tokens."""
    monkeypatch.setattr(engine_module, "share_memory", lambda use: way == "one by one")
    verifier = Failing()
    engine, asked = open_engine(verifier)
    ended = stepped(engine, steps)
    verifier.error = ValueError("planted") if way == "error" else torch.OutOfMemoryError("CUDA out of memory")
    with warnings.catch_warnings(), contextlib.suppress(SpecframeError):
        warnings.simplefilter("ignore")
        ended |= stepped(engine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended |= stepped(engine)
    assert verifier.error is None
    assert len(ended) == len(asked)
    assert_the_references(ended, asked)


@pytest.mark.wide(but=["2"])
@pytest.mark.parametrize("batch_size", [2, 8])
def test_samples_of_a_draft_model_with_states(batch_size: int) -> None:
    """The draft model's states are forked with the target's: samples are those of plain decoding."""
    prompts = harness.random_prompts([6, 1, 9], 61)
    found = []
    for drafter, rows in ((None, 1), (fakes.fake_draft(TARGET), batch_size)):
        pipe = harness.pipeline(TARGET, drafter, accept=standard.ALWAYS_THE_SAME, batch_size=rows, draft_length=3)
        results = pipe.generate(prompts, 7, sampling=Sampling(temperature=40.0, samples=4))
        found.append([one.token_ids for one in results])
    assert found[0] == found[1]


def test_prefixes_of_states_are_not_cached() -> None:
    """A store that has a sequence's first keys and values has not its states: all tokens are fed."""
    run = harness.open_run(TARGET, 2, 20)
    sequence = Rows(5).batch.sequences[0]
    run.target.store.reserve = lambda *_: 3  # type: ignore[method-assign]
    assert run.target.reserve(sequence, 5) == 0
    plain = harness.open_run(fakes.fake_target(), 2, 20)
    plain.target.store.reserve = lambda *_: 3  # type: ignore[method-assign]
    assert plain.target.reserve(sequence, 5) == 3


def test_each_cache_of_one_model_has_its_own_states() -> None:
    """A model that is fed through two caches takes in each prompt once in each, and scores it alike."""
    run = harness.open_run(TARGET, 2, 20)
    other, batch = run.open_cache(run.runner), Rows(5, 4).batch
    first, second = (cached.read(batch, uncached=5) for cached in (run.target, other))
    assert torch.equal(first.logits_BTV, second.logits_BTV)


def wrong(member: str, function: Any) -> Any:
    """Return a kind of which one member does something else."""
    return type("Wrong", (states.FakeHash,), {member: function})


@pytest.mark.wide
@pytest.mark.parametrize(
    ("member", "function", "said"),
    [
        ("layers", lambda self, model: 1 / 0, r"layers\(\) raised ZeroDivisionError: division by zero"),
        ("shape", lambda self, layer: 1 / 0, r"shape\(\) raised ZeroDivisionError: division by zero"),
        ("forward", lambda self, layer, state: lambda ids, cache: 1 / 0, r"forward\(\) raised ZeroDivisionError: .*"),
        (
            "forward",
            lambda self, layer, state: states.FakeHash().forward(layer, attrs.evolve(state, note=lambda *_: None)),
            r"forward\(\) must note what the state of layer 0 .*",
        ),
        (
            "advance",
            lambda self, *_: (torch.zeros(1),),
            r"advance\(\) must return parts of the shapes \[\(3, 2\)\], got \[\(1,\)\]",
        ),
    ],
    ids=["layers", "shape", "forward", "nothing noted", "advance"],
)
def test_faults_of_a_kind_are_one_sentence(member: str, function: Any, said: str) -> None:
    """What a kind raises or returns is reported with its name and its distribution."""
    known = registry().entries["state kind"]
    before = dict(known)
    known.clear()
    add_entry(registry(), "faulty-dist", "state kind", "faulty", wrong(member, function))
    asked = usual_requests(TARGET)
    try:
        with pytest.raises(SpecframeError, match=rf"state kind 'faulty' of faulty-dist: {said}$") as raised:
            harness.decode(harness.pipeline(TARGET, scripted(asked), batch_size=3, draft_length=3), asked)
    finally:
        known.clear()
        known.update(before)
    assert "\n" not in str(raised.value)


@pytest.mark.wide
def test_an_unknown_kind_is_one_sentence() -> None:
    """Without a plugin that knows its kind, a model with states is refused."""
    del registry().entries["state kind"][states.NAME]
    try:
        with pytest.raises(ModelError) as raised:
            ModelRunner(TARGET, "target")
    finally:
        add_entry(registry(), states.DISTRIBUTION, "state kind", states.NAME, states.FakeHash)
    assert str(raised.value) == (
        "the target has layers of type linear_attention; expected only full_attention, sliding_attention, chunked_attention, "
        "indexed_attention, whose cache can forget rejected tokens, or a kind of state that an installed plugin registers "
        "by the hook specframe_register_state_kinds"
    )


@pytest.mark.wide
def test_a_layer_that_two_kinds_claim_is_one_sentence() -> None:
    """Two plugins that both know a layer are named."""
    add_entry(registry(), "another", "state kind", "another", states.FakeHash)
    try:
        with pytest.raises(
            ModelError,
            match=r"^layer 0 of the target is claimed by state kind 'another' of .* and state kind 'fake-hash'",
        ):
            state_layers(TARGET, "the target")
    finally:
        del registry().entries["state kind"]["another"]


class Several(states.FakeHash):
    """Knows two modules of one layer, and one of the layer before."""

    def layers(self, model: torch.nn.Module) -> Mapping[int, torch.nn.Module | tuple[torch.nn.Module, ...]]:
        """Return the modules."""
        return {2: tuple(torch.nn.Identity() for _ in range(2)), 1: torch.nn.Identity()}


def test_each_of_a_layers_modules_has_a_state() -> None:
    """Modules that keep a state are numbered in the order of layers, and know their layer's number."""
    del registry().entries["state kind"][states.NAME]
    add_entry(registry(), states.DISTRIBUTION, "state kind", states.NAME, Several)
    layers = state_layers(TARGET, "the target")
    assert [(number, layer.number) for number, layer in layers.items()] == [(0, 1), (1, 2), (2, 2)]
    assert len({layer.module for layer in layers.values()}) == 3
    store = RowStates(layers, 2, torch.device("cpu"))
    assert store.nbytes == 3 * 2 * 2 * 8


@pytest.mark.wide
def test_trees_of_a_draft_model_with_states_are_refused() -> None:
    """A tree is drafted by feeding tokens again, which a state cannot take in twice."""
    pipe = harness.pipeline(TARGET, harness.strategy(registry(), "drafter", "model,branch=2/1"), draft_length=2)
    pipe.parts.draft = fakes.fake_draft(TARGET)
    with pytest.raises(CompositionError, match=r"a tree is drafted by feeding tokens again, .*: expected tree=chain"):
        harness.decode(pipe, usual_requests(TARGET))


@pytest.mark.wide
def test_a_cache_with_a_layout_of_its_own_is_refused() -> None:
    """A strategy whose rows have a layout of its own feeds tokens again, and is refused for a model with states."""
    run = harness.open_run(TARGET, 2, 20)
    with pytest.raises(
        ModelError, match=r"^the target \(FakeStateModel\) has layers that keep a state: expected a strategy whose"
    ):
        run.open_cache(run.runner, layout=run.alignment.layout)


class Rows:
    """A store of states and rows of tokens that are fed to it."""

    def __init__(self, *lengths: int) -> None:
        self.asked = harness.requests(harness.random_prompts(lengths, 61), 20)
        pool = harness.open_pool(self.asked)
        self.batch = pool.batch(pool.admit(len(lengths)))
        self.layers = state_layers(TARGET, "the target")
        self.store = RowStates(self.layers, len(lengths), torch.device("cpu"))
        self.store.arrange(self.batch.sequences)

    def feed(self, ids_BT: torch.Tensor, start: int, parents_BT: torch.Tensor | None = None) -> LayerState:
        """Feed a block and return the states it was given."""
        self.store.begin(self.batch, Block(ids_BT, start, parents_BT))
        state = self.store.state(0)
        self.layers[0].forward(state)(ids_BT, None)
        return state

    def read(self) -> None:
        """Feed all rows' tokens but the last, and commit them."""
        width = self.batch.longest - 1
        self.feed(self.batch.last_tokens(width, -1), -width - 1)
        self.store.commit(self.batch, Kept(-1))

    def expected(self, row: int, *after: int) -> list[int]:
        """Return the state after a row's own tokens but the last, and others."""
        state_12 = torch.zeros(1, 2, dtype=torch.long)
        for token in [*self.asked[row].prompt_ids[:-1], *after]:
            state_12 = states.taken(state_12, torch.tensor([token]))
        found: list[int] = state_12[0].tolist()
        return found


DRAFT_BT = torch.tensor([[20, 21, 22, 23], [30, 31, 32, 33], [40, 41, 42, 43]])


@pytest.mark.wide
@pytest.mark.parametrize("where", ["host", "device"])
def test_each_row_keeps_its_own_number_of_tokens(where: str) -> None:
    """After a block of which rows keep none, some and all tokens, each state is that of a fresh pass over what is kept."""
    rows, stand = Rows(5, 1, 9), np.array([-1, 1, 3])
    rows.read()
    rows.feed(DRAFT_BT, -1)
    kept = Kept(stand) if where == "host" else Kept(torch.from_numpy(stand), None, lambda: stand)
    rows.store.commit(rows.batch, kept)
    lengths = rows.batch.lengths + stand + 1
    rows.batch = attrs.evolve(rows.batch, lengths=lengths, lengths_B=torch.from_numpy(lengths))
    (before_B2,) = rows.feed(DRAFT_BT[:, :1], -1).before
    assert before_B2.tolist() == [rows.expected(0), rows.expected(1, 30, 31), rows.expected(2, 40, 41, 42, 43)]


def test_a_path_is_taken_in_in_its_order() -> None:
    """Of a tree the state takes in the row's own token and the nodes of the path, wherever they are in the block."""
    rows = Rows(5, 1)
    rows.read()
    parents_BT = torch.tensor([[-1, 0, 0, 1, 2]]).expand(2, -1)
    rows.feed(torch.tensor([[20, 21, 22, 23, 24], [30, 31, 32, 33, 34]]), -1, parents_BT)
    path_BT, stand = torch.tensor([[1, 3], [0, 2]]), torch.tensor([2, 1])
    rows.store.commit(rows.batch, Kept(stand, path_BT, lambda: stand.numpy()))
    lengths = rows.batch.lengths + stand.numpy() + 1
    rows.batch = attrs.evolve(rows.batch, lengths=lengths, lengths_B=torch.from_numpy(lengths))
    (before_B2,) = rows.feed(DRAFT_BT[:2, :1], -1).before
    assert before_B2.tolist() == [rows.expected(0, 20, 22, 24), rows.expected(1, 30, 31)]


def test_a_chain_of_blocks_keeps_one_state_after_them() -> None:
    """A draft model feeds a token at a time: of the states on the way none stays, only the tokens that they took in."""
    rows = Rows(5, 3)
    rows.read()
    on_the_way = [weakref.ref(rows.feed(DRAFT_BT[:2, place, None], place - 1).before[0]) for place in range(4)]
    assert [state_B2() is not None for state_B2 in on_the_way[1:]] == [False, False, False]
    rows.store.commit(rows.batch, Kept(3))
    held = after = 2 * 2 * 8
    assert rows.store.nbytes == held + after + 2 * 4 * 8
    assert [row.tolist() for (part,) in rows.store._held.values() for row in part] == [
        rows.expected(0, 20, 21, 22, 23),
        rows.expected(1, 30, 31, 32, 33),
    ]


def test_a_state_forgets_nothing() -> None:
    """A strategy that goes back behind what a state has taken in, or goes on without committing, ends in one sentence."""
    rows = Rows(5, 3)
    rows.read()
    with pytest.raises(
        ContractError, match=r"a block begins after 3 tokens of row 0, whose state holds 4: expected a cache"
    ):
        rows.feed(DRAFT_BT[:2], -2)
    rows.feed(DRAFT_BT[:2], -1)
    with pytest.raises(
        ContractError, match=r"row 0 is to keep 3 tokens, and its state holds 4 already: expected at least"
    ):
        rows.store.commit(rows.batch, Kept(-2))
    with pytest.raises(
        ContractError, match=r"was fed and not committed when a block begins that is no continuation of it"
    ):
        rows.feed(DRAFT_BT[:2], -1)
    with pytest.raises(ContractError, match=r"was fed and not committed when rows change their places"):
        rows.store.arrange(rows.batch.sequences[::-1])


def test_pieces_of_prompts_stand_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tokens of a long prefill chunk nothing is kept to take in, and one that is to be kept in part is refused."""
    monkeypatch.setattr(forward_states, "LONG", 2)
    asked = usual_requests(TARGET)
    harness.check(harness.pipeline(TARGET, scripted(asked), batch_size=3, draft_length=3), asked)
    rows = Rows(5)
    rows.feed(rows.batch.last_tokens(4, -1), -5)
    (fed,) = rows.store._fed
    assert fed.after
    assert not any(map(callable, fed.after.values())), "what computes the states after a piece holds the piece"
    with pytest.raises(ContractError, match=r"^a prefill chunk was fed, and a part of it is to be kept: expected all"):
        rows.store.commit(rows.batch, Kept(-2))
