"""Mixed batches: prefill chunks and rows that decode share a forward where that can be, and change no token."""

from __future__ import annotations

import copy
import re
from typing import Any

import architectures
import numpy as np
import pytest
import torch
from planting import noting
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_std.graphs import captured_forward
from specframe_std.graphs.captured_forward import CapturedForward
from specframe_std.kv.slab import SlabStore
from specframe_std.schedulers import continuous
from specframe_testing import fakes, harness, states, suite_device, zoo
from specframe_testing.paged_fake import Gathering, Pages

from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Block, Budget, Scores
from specframe.contracts.round import Batch
from specframe.engine.pool import Pool
from specframe.model.attention import choice
from specframe.model.cached import CachedModel
from specframe.model.padding_free import MixedBatch
from specframe.text.sampling import Sampling

LENGTHS = (6, 4, 2, 23, 1, 30, 9)
NEW = [14, 3, 6, 9, 7, 8, 5]
ASKED = harness.requests(harness.random_prompts(LENGTHS, zoo.VOCABULARY, seed=5), NEW, {zoo.EOS})
MIXED = "continuous,piece=8,mixed=on"


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The rows that decode and those that read, of each forward that has both."""
    seen: list[tuple[int, int]] = []
    usual = CachedModel._feed_both

    def feed(self: CachedModel, batch: Batch, block: Block, keep: int, mixed: Batch, piece: Block) -> Scores:
        seen.append((len(batch), len(mixed)))
        scores = usual(self, batch, block, keep, mixed, piece)
        if isinstance(self.store, SlabStore):
            assert self.store._row_map._batch == batch.sequences, "the cache's rows are those of the round again"
        return scores

    monkeypatch.setattr(CachedModel, "_feed_both", feed)
    return seen


@pytest.mark.wide
@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one != "gpt2")) for one in zoo.NAMES])
def test_architectures(name: str, joined: list[tuple[int, int]]) -> None:
    """Every architecture decodes what the reference decoder does."""
    target = zoo.build(name)
    pipe = harness.pipeline(target, zoo.good_draft(target), schedule=MIXED, batch_size=3, draft_length=3)
    harness.check(pipe, ASKED)
    assert len(joined) > 2


@pytest.mark.wide(but=["{'bitwise': True}-True"])
@pytest.mark.parametrize(
    ("options", "joins"),
    [
        ({"check": True}, True),
        ({"bitwise": True}, True),
        pytest.param({"graphs": "on"}, True, marks=pytest.mark.slow),
        pytest.param({"attention": "flex"}, True, marks=pytest.mark.slow),
        pytest.param({"kv": Pages(), "attention": Gathering()}, True, marks=pytest.mark.slow),
        ({"drafter": ModelDrafter(branch="3/1/1"), "check": True}, True),
        pytest.param({"drafter": "none"}, True, marks=pytest.mark.slow),
        pytest.param({"draft_length": fakes.Uneven(Budget(4))}, True, marks=pytest.mark.slow),
        ({"align": "eqspec", "check": True}, False),
        pytest.param({"align": "exspec"}, False, marks=pytest.mark.slow),
        pytest.param({"align": "eqspec", "kv": "slab"}, False, marks=pytest.mark.slow),
        pytest.param({"layers": "traced"}, True, marks=pytest.mark.slow),
    ],
    ids=lambda one: re.sub(r"<\S*?(\w+) object at \w+>", r"\1", str(one)),
)
@pytest.mark.filterwarnings("ignore:attention 'flex' holds all scores")
def test_whatever_attends_stores_and_drafts(
    options: dict[str, Any], joins: bool, joined: list[tuple[int, int]]
) -> None:
    """Chains and trees with prefill chunks, under every alignment, store and attention backend, and with all invariants checked."""
    target = zoo.build("gemma3")
    draft = None if options.get("drafter") == "none" else zoo.good_draft(target)
    given = {"align": "ragged", "schedule": MIXED, "batch_size": 3, "draft_length": 3, **options}
    harness.check(harness.pipeline(target, draft, **given), ASKED)
    assert bool(joined) == joins


@pytest.mark.parametrize("align", ["ragged", pytest.param("eqspec", marks=pytest.mark.slow)])
def test_layers_that_keep_a_state(align: str) -> None:
    """A state takes in rows of its own: the piece is read in the same round, in a forward of its own, and samples share it."""
    target = states.fake_state_target()
    with states.known():
        asked = harness.requests(harness.random_prompts(LENGTHS, 61, seed=5), NEW, {7})
        draft = fakes.fake_draft(target)
        pipe = harness.pipeline(target, draft, align=align, schedule=MIXED, batch_size=3, draft_length=3)
        harness.check(pipe, asked)
        found = []
        for schedule in ("continuous", MIXED):
            pipe = harness.pipeline(target, draft, accept="gumbel", schedule=schedule, batch_size=4, draft_length=3)
            results = pipe.generate(
                [one.prompt_ids for one in asked[:5]], 7, sampling=Sampling(temperature=40.0, samples=3)
            )
            found.append([one.token_ids for one in results])
        assert found[0] == found[1]


@pytest.mark.wide(but=["the forward of a piece"])
@pytest.mark.parametrize("place", ["the forward of both", "the forward of a piece", "the drafter"])
def test_lack_of_memory(place: str, monkeypatch: pytest.MonkeyPatch, joined: list[tuple[int, int]]) -> None:
    """A round that ran out of memory is discarded, a committed one is kept: no token is lost, wherever it was."""
    target, failed = zoo.build("qwen3"), []
    owner, name = {
        "the forward of both": (CachedModel, "_feed_both"),
        "the forward of a piece": (CachedModel, "read"),
        "the drafter": (ModelDrafter, "observe"),
    }[place]
    usual = getattr(owner, name)

    def falls(self: Any, *given: Any, **named: Any) -> Any:
        found = usual(self, *given, **named)
        of_piece = name != "read" or (self.runner.role == "target" and given[0].left)
        of_piece &= name != "observe" or given[0].transfer is None
        if of_piece and not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return found

    monkeypatch.setattr(owner, name, falls)
    align = "eqspec" if place == "the forward of a piece" else "ragged"
    pipe = harness.pipeline(
        target, zoo.good_draft(target), align=align, schedule=MIXED, batch_size=4, draft_length=3, check=True
    )
    with pytest.warns(RuntimeWarning, match="memory ran out: going on in batches of 2"):
        harness.check(pipe, ASKED)
    assert failed


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"drafter": "none"}, marks=pytest.mark.slow),
        {"drafter": ModelDrafter(branch="3/1/1")},
        pytest.param({"bitwise": True}, marks=pytest.mark.slow),
        pytest.param({"rounds": "synchronous", "graphs": "on"}, marks=pytest.mark.slow),
    ],
    ids=["chains", "plain", "trees", "bitwise", "synchronous"],
)
def test_they_are_captured(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of all lengths up to a power of two replay one captured graph, a new one where other rows read them."""
    kept = noting(monkeypatch, CapturedForward, "__attrs_post_init__", lambda _, captured: captured)
    monkeypatch.setattr(captured_forward, "EAGER", 1)
    target = zoo.build("qwen3")
    prompts = harness.random_prompts([5, 3, *range(12, 44, 2)], zoo.VOCABULARY, seed=8)
    asked = harness.requests(prompts, [20, 30, *[6, 9, 7] * 5, 8])
    with suite_device.running_on("sim"):
        draft = None if options.get("drafter") == "none" else zoo.good_draft(target)
        given = {"schedule": "continuous,wait=0", "batch_size": 3, "draft_length": 3, **options}
        harness.check(harness.pipeline(target, draft, **given), asked)
    groups = {key[7] for key in kept[0].graphs._kept if key[7]}
    assert (2, (1, 32)) in {(own[0], chunk) for own, chunk in groups}
    assert {room for _, (_, room) in groups} <= {1, 2, 4, 8, 16, 32, 64}


@pytest.mark.parametrize(
    ("name", "device", "options", "unasked"),
    [
        ("qwen3", "sim", {}, True),
        ("qwen3", "sim", {"graphs": "off"}, False),
        ("qwen3", "sim", {"align": "eqspec", "kv": "slab"}, False),
        ("falcon_h1", "sim", {}, False),
        ("qwen3", "cpu", {}, False),
        ("qwen3", "cpu", {"graphs": "on"}, True),
        ("qwen3", "cpu", {"graphs": "on", "memory": "1 GB"}, False),
    ],
    ids=str,
)
def test_they_are_unasked_for_where_one_captured_forward_reads_both(
    name: str, device: str, options: dict[str, Any], unasked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round reads no more tokens of prompts than a graph computes, and none where these took a forward of their own, or no plan
    of memory has them."""
    monkeypatch.setattr(continuous, "PROMPTS", 16)

    def chunk(made: Batch, pool: Pool, sequences: Any, piece: int = 0, mixed: Any = ()) -> tuple[int, int] | None:
        return (len(mixed), piece) if mixed else None

    chunks = noting(monkeypatch, Pool, "batch", chunk)
    target = architectures.build(name) if name == "falcon_h1" else zoo.build(name)
    prompts = harness.random_prompts((3, 9, 9, 50, 40, 33), zoo.VOCABULARY, seed=8)
    with suite_device.running_on(device):
        given = {"drafter": "none", "batch_size": 3, "schedule": "continuous,wait=0", **options}
        harness.check(harness.pipeline(target, **given), harness.requests(prompts, [60, 4, 4, 4, 9, 4]))
    assert bool(chunks) == unasked
    assert all(rows * piece <= 16 for rows, piece in chunks)
    assert {(1, 16), (2, 8)} <= {*chunks} or not unasked


def test_drafters_read_what_was_read_with_rows_that_had_ended() -> None:
    """A draft that is the target is accepted whole, for prompts too whose chunk was read ahead, with a row that had ended.

    The first row ends a round before the second one. The third is let in as the round ahead is launched, in which neither goes on.
    """
    target = zoo.build("qwen3")
    asked = harness.requests(harness.random_prompts((5, 7, 17), zoo.VOCABULARY, seed=5), [9, 13, 13])
    with suite_device.running_on("sim"):
        given: dict[str, Any] = {"schedule": MIXED, "rounds": "deferred", "batch_size": 2, "draft_length": 3}
        results = harness.decode(harness.pipeline(target, copy.deepcopy(target), **given), asked)
    assert [one.metrics.acceptance_histogram for one in results] == [{3: 2}, {3: 3}, {3: 3}]


def test_masks_that_would_be_large(monkeypatch: pytest.MonkeyPatch, joined: list[tuple[int, int]]) -> None:
    """A chunk whose masks would be too large with the others is read in forwards of its own, as long as they may be."""
    monkeypatch.setattr(choice, "LARGEST_MASK", 1500)
    target = zoo.build("qwen3")
    harness.check(harness.pipeline(target, zoo.good_draft(target), schedule=MIXED, batch_size=3, draft_length=3), ASKED)
    assert not joined


@pytest.mark.wide(but=["tree-a wide piece"])
@pytest.mark.parametrize(
    ("widths", "slots"),
    [((2, 5), (7, 4)), ((5, 2), (4, 7)), ((3, 3), (5, 5))],
    ids=["a wide piece", "a wide draft", "alike"],
)
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_joined_blocks(widths: tuple[int, int], slots: tuple[int, int], tree: bool) -> None:
    """Every place of both blocks is where it is alone, and rows are widened by copies of their last place."""
    blocks, places = [], []
    for number, (width, extent) in enumerate(zip(widths, slots, strict=True)):
        rows = 2 + number
        values_BT = torch.arange(rows * width).view(rows, width) + 100 * number
        key_index_BS = torch.arange(extent)[None] + 10 * number
        sees_1TT = torch.eye(width, dtype=torch.bool)[None] if tree and not number else None
        places.append(Placement(values_BT + 1, values_BT + 2, values_BT + 3, key_index_BS, sees_BTT=sees_1TT))
        blocks.append(Block(values_BT, -1 - number * width, counts=np.array([1, width, 1][:rows])))
    both = MixedBatch.of(blocks[0], blocks[1], (places[0], places[1]))
    width, slot_count = max(widths), max(slots)
    for start, block, placed in ((0, blocks[0], places[0]), (2, blocks[1], places[1])):
        own = slice(start, start + len(block.ids_BT))
        at_T = torch.arange(width).clamp(max=block.width - 1)
        assert both.block.ids_BT[own].equal(block.ids_BT[:, at_T])
        assert both.placement.positions_BT[own].equal(placed.positions_BT[:, at_T])
        assert both.placement.slots_BT[own].equal(placed.slots_BT[:, at_T])
        assert both.placement.index_BT[own].equal(placed.index_BT[:, at_T])
        extent = placed.key_index_BS.shape[1]
        assert (both.placement.key_index_BS[own, :extent] == placed.key_index_BS).all()
        assert (both.placement.key_index_BS[own, extent:] == -1).all()
    assert both.placement.key_index_BS.shape == (5, slot_count)
    if tree:
        assert both.placement.sees_BTT is not None
        assert both.placement.sees_BTT[0, : widths[0], : widths[0]].equal(torch.eye(widths[0], dtype=torch.bool))
        ones = torch.ones(widths[1], widths[1], dtype=torch.bool)
        assert both.placement.sees_BTT[3, : widths[1], : widths[1]].equal(ones.tril())
    assert both.padding_free.tokens == sum(block.tokens for block in blocks)
    states_BTD = torch.arange(5 * width * 2).view(5, width, 2)
    parted = both.parted(Scores(torch.zeros(2, 1, 7), {3: states_BTD}))
    assert parted.hidden[3].equal(states_BTD[:2, : widths[0]])
    assert parted.mixed is not None
    assert parted.mixed.hidden[3].equal(states_BTD[2:, : widths[1]])
    assert parted.mixed.logits_BTV.shape == (3, 0, 7)
