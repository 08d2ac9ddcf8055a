"""The one rule of visibility, held against brute force, and every user of it against the rule."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import torch
from specframe_std.attention import flex
from specframe_testing import zoo

from specframe.contracts.cache import ChunkWindow, Placement, Window
from specframe.contracts.drafts import Block
from specframe.contracts.model import ForwardOptions
from specframe.contracts.requests import Request
from specframe.contracts.round import Sequence
from specframe.devices import kinds
from specframe.model.attention.masks import masks, staircase
from specframe.model.runner import ModelRunner
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry

EXTENT = 150
"""Slots attended to: more than one block of flex attention."""


@attrs.frozen
class Case:
    """A placement and, per row, the token in each slot: its order, and its place in the block if it is fed."""

    placement: Placement
    held: list[dict[int, tuple[int, int | None]]]
    parents: list[list[int]] | None


def random_case(seed: int, tree: bool) -> Case:
    """Return three rows whose tokens lie anywhere, with slots that hold nothing and slots of tokens that were rejected."""
    choose, width = random.Random(seed), 6
    parents = [[-1, *(choose.randrange(-1, place) for place in range(1, width))] for _ in range(3)] if tree else None
    block = Block(torch.zeros(3, width, dtype=torch.long), 0, torch.tensor(parents) if parents else None)
    depth_BT = block.depth_BT().expand(3, -1)
    key_index_BS = torch.full((3, EXTENT), -1)
    slots_BT, index_BT = torch.zeros(3, width, dtype=torch.long), torch.zeros(3, width, dtype=torch.long)
    held: list[dict[int, tuple[int, int | None]]] = []
    for row in range(3):
        length = choose.choice([0, 3, 40, 120])
        slots = choose.sample(range(EXTENT), length + width)
        row_held: dict[int, tuple[int, int | None]] = {slots[order]: (order, None) for order in range(length)}
        for place in range(width):
            index_BT[row, place] = length + depth_BT[row, place] - (2 if not tree and length == 0 else 0)
            slots_BT[row, place] = slots[length + place] if index_BT[row, place] >= 0 else EXTENT
            if index_BT[row, place] >= 0:
                row_held[slots[length + place]] = (int(index_BT[row, place]), place)
        for slot, (order, _) in row_held.items():
            key_index_BS[row, slot] = order
        held.append(row_held)
    return Case(Placement(index_BT, slots_BT, index_BT, key_index_BS, None, block.sees_BTT), held, parents)


def seen(case: Case, row: int, query: int, slot: int, window: Window) -> bool:
    """Say whether a query sees a slot, by going up the tree token by token."""
    if slot not in case.held[row]:
        return False
    order, place = case.held[row][slot]
    mine = max(0, int(case.placement.index_BT[row, query]))
    if order > mine:
        return False
    if isinstance(window, ChunkWindow):
        if order // window.size != mine // window.size:
            return False
    elif window is not None and order <= mine - window:
        return False
    if case.parents is None or place is None:
        return True
    path = [query]
    while (parent := case.parents[row][path[-1]]) >= 0:
        path.append(parent)
    return place in path


def brute_force(case: Case, window: Window) -> torch.Tensor:
    """Return which query sees which slot, (B, T, S)."""
    rows, width = case.placement.index_BT.shape
    return torch.tensor(
        [[[seen(case, b, t, s, window) for s in range(EXTENT)] for t in range(width)] for b in range(rows)]
    )


@pytest.mark.wide
@pytest.mark.parametrize("window", [None, 4, ChunkWindow(1), ChunkWindow(3), ChunkWindow(64)], ids=str)
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("seed", range(3))
def test_one_rule(seed: int, tree: bool, window: Window) -> None:
    """The rule, the mask tensors, and the blocks and mask of flex attention show the same slots, those of brute force."""
    case = random_case(seed, tree)
    placement, wanted_BTS = case.placement, brute_force(case, window)
    row_B, query_T, slot_S = (torch.arange(count) for count in wanted_BTS.shape)
    indices: Any = (row_B[:, None, None], query_T[:, None], slot_S)
    assert torch.equal(placement.rule(window)(*indices), wanted_BTS)
    assert torch.equal(placement.seen(window).expand_as(wanted_BTS), wanted_BTS)
    mask_B1TS = masks(placement, [window], torch.float32)[window]
    assert torch.equal(mask_B1TS[:, 0].expand_as(wanted_BTS) == 0, wanted_BTS)
    made = flex.block_mask(placement, window)
    assert torch.equal(made.mask_mod(indices[0], row_B[:1], indices[1], indices[2]), wanted_BTS)
    blocks_BQK = flex.looked_at(made)
    assert blocks_BQK[:, 0].repeat_interleave(flex.BLOCK, 1)[:, None, :EXTENT][wanted_BTS.any(1, keepdim=True)].all()


@pytest.mark.wide(but=["3-5-130-4"])
@pytest.mark.parametrize("window", [None, 1, 4, 64, ChunkWindow(3), ChunkWindow(64)], ids=str)
@pytest.mark.parametrize(("width", "slots"), [(1, 1), (1, 9), (3, 3), (5, 130), (12, 90), (16, 17), (70, 71)])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_are_even(rows: int, width: int, slots: int, window: Window) -> None:
    """What tokens of even rows see follows from their number and that of the slots, and is what the rule says."""
    key_index_1S = torch.arange(slots)[None]
    index_BT = key_index_1S[:, -width:].repeat(rows, 1)
    placement = Placement(index_BT, index_BT, index_BT, key_index_1S, even_of=(index_BT, index_BT, key_index_1S))
    assert placement.even
    other = attrs.evolve(placement, key_index_BS=key_index_1S.clone())
    assert not other.even
    assert not attrs.evolve(placement, slots_BT=index_BT.clone()).even
    wanted = masks(other, [window], torch.float32)[window]
    found = masks(placement, [window], torch.float32)[window]
    torch.testing.assert_close(found, wanted.expand(rows, -1, -1, -1), atol=0, rtol=0)


def test_one_mask_is_kept_for_drafts_and_rows_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows to powers of two, and what was asked for before is a part of it."""
    kept: dict[Any, torch.Tensor] = {}
    monkeypatch.setattr("specframe.model.attention.masks._STAIRCASES", kept)
    for width, slots in ((3, 40), (1, 100), (9, 12), (2, 2)):
        staircase(width, slots, None, torch.float32, torch.device("cpu"))
    assert [mask.shape for mask in kept.values()] == [(1, 1, 16, 128)]


@pytest.mark.wide(but=["5-130"])
@pytest.mark.parametrize(("width", "slots"), [(1, 9), (3, 16), (5, 130), (40, 41)])
def test_masks_are_aligned_where_kernels_need_it(width: int, slots: int) -> None:
    """On a device as strict as CUDA a mask and its rows begin at multiples of 8 numbers, and it hides the same as on a CPU."""
    on_cpu, made = (
        masks(Placement(index_BT, index_BT, index_BT, key_index_1S, even_of=even_of), [None], torch.float32)[None]
        for key_index_1S in (torch.arange(slots)[None], kinds.numbers(0, slots, kinds.pick("sim")))
        for index_BT in [key_index_1S[:, -width:].expand(3, -1)]
        for even_of in [(index_BT, index_BT, key_index_1S)]
    )
    assert made.storage_offset() % 8 == 0
    assert not any(stride % 8 for stride in made.stride()[:-1])
    assert torch.equal(made.cpu(), on_cpu)


def feed(runner: ModelRunner, store: Any, block: Block, placement: Placement, attention: str) -> torch.Tensor:
    """Return the logits after each token of a block, (B, T, V)."""
    choice = strategy(registry(), "attention backend", attention)
    return runner.forward(block, placement, store, keep=block.width, how=ForwardOptions(choice)).logits_BTV


@pytest.mark.wide(but=["mistral-masked"])
@pytest.mark.filterwarnings("ignore:attention 'flex' holds all scores")
@pytest.mark.parametrize("attention", ["masked", "flex"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_nodes_of_a_tree_see_their_paths(name: str, attention: str) -> None:
    """The logits after each node of a tree fed at once are those after its path fed alone."""
    model = zoo.build(name)
    runner, length = ModelRunner(model, "target"), 9
    ids_BT = torch.randint(zoo.VOCABULARY, (2, length), generator=torch.Generator().manual_seed(0))
    parents = [-1, 0, 0, 1, 1, 2, 5]
    tree_BT = torch.randint(zoo.VOCABULARY, (2, len(parents)), generator=torch.Generator().manual_seed(1))
    store = registry().make("KV backend", "slab").open(runner.kv_shapes, 2, 40, runner.device)
    store.arrange([Sequence(Request(index, [1], 1), 2) for index in range(2)])
    past_BT = torch.arange(length).repeat(2, 1)
    feed(runner, store, Block(ids_BT, -length), Placement(past_BT, past_BT, past_BT, past_BT), attention)
    block = Block(tree_BT, 0, torch.tensor([parents]))
    index_BT = (length + block.depth_BT()).expand(2, -1)
    slots_BT = (length + torch.arange(len(parents))).repeat(2, 1)
    key_index_BS = torch.cat([past_BT, index_BT], dim=1)
    placement = Placement(index_BT, slots_BT, index_BT, key_index_BS, None, block.sees_BTT)
    logits_BTV = feed(runner, store, block, placement, attention)
    for node in range(len(parents)):
        path = [node]
        while (parent := parents[path[-1]]) >= 0:
            path.append(parent)
        alone_BT = torch.cat([ids_BT, tree_BT[:, path[::-1]]], dim=1)
        torch.testing.assert_close(logits_BTV[:, node], model(alone_BT).logits[:, -1], atol=1e-3, rtol=1e-3)
