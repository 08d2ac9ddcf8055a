"""A KV backend that keeps states, and one with pages, whose authors know the contracts alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
import torch
from specframe_testing import harness, standard, states, zoo
from specframe_testing.conformance import KVBackendSuite, StateStoreSuite
from specframe_testing.strict import strict

from specframe.contracts.attention import Attend, AttentionBackend, AttentionFacts
from specframe.contracts.cache import KVBackend, KVShape, KVStore, KVView, Paged, Placement
from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch, Kept, Sequence
from specframe.contracts.states import After, Inputs, LayerState, Parts, StateLayer
from specframe.plugins.registry import registry


class Diaries:
    """Keeps the states of each sequence by its identity, beside the keys and values of another backend."""

    needs = frozenset[str]()

    def __init__(self, inner: KVBackend) -> None:
        self._inner, self.offers = inner, inner.offers | {"states"}

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> Diary:
        self._opened = Diary(self._inner.open(shapes, rows, capacity, device), device)
        return self._opened

    def open_states(self, layers: Mapping[int, StateLayer], rows: int, device: torch.device) -> Diary:
        self._opened.layers = layers
        return self._opened


@attrs.define(eq=False)
class Page:
    """One forward: its tokens' orders, and what layers have told."""

    block: Block
    order_BT: torch.Tensor
    inputs: dict[int, Inputs] = attrs.Factory(dict)
    after: dict[int, Parts] = attrs.Factory(dict)


class Diary:
    """A store of keys and values, and of states, in one object."""

    def __init__(self, inner: KVStore, device: torch.device) -> None:
        self._inner, self._device = inner, device
        self.layers: Mapping[int, StateLayer] = {}
        self._held: dict[int, dict[int, Parts]] = {}
        self._starts: dict[int, dict[int, Parts]] = {}
        self._batch: list[Sequence] = []
        self._pages: list[Page] = []

    @property
    def rows(self) -> int:
        return self._inner.rows

    @property
    def slots(self) -> int | None:
        return self._inner.slots

    @property
    def first(self) -> int:
        return self._inner.first

    def arrange(self, sequences: list[Sequence]) -> None:
        self._inner.arrange(sequences)
        self._batch = sequences
        for one in sequences:
            if id(one) not in self._held:
                start = self._starts.get(id(one.parent)) if one.parent else None
                self._held[id(one)] = dict(start) if start else self._zeros()

    def _zeros(self) -> dict[int, Parts]:
        return {
            number: tuple(
                torch.zeros(1, *size, dtype=dtype, device=self._device)
                for size, dtype in zip(layer.shape.sizes, layer.shape.dtypes, strict=True)
            )
            for number, layer in self.layers.items()
        }

    def expect(self, placement: Placement) -> None:
        self._inner.expect(placement)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> KVView:
        return self._inner.write(layer, keys, values)

    def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        self._inner.move(sources_BT, targets_BT)

    def reserve(self, sequence: Sequence, tokens: int) -> int | None:
        return self._inner.reserve(sequence, tokens)

    def release(self, sequence: Sequence) -> None:
        self._inner.release(sequence)
        self._held.pop(id(sequence), None)
        self._starts.pop(id(sequence), None)

    def begin(self, batch: Batch, block: Block) -> None:
        order_BT = batch.lengths_B[:, None] + block.start + block.depth_BT()
        self._pages.append(Page(block, order_BT))

    def state(self, layer: int) -> LayerState:
        page = self._pages[-1]
        held = [self._held[id(one)][layer] for one in self._batch]
        before = tuple(map(torch.cat, zip(*held, strict=True)))
        if len(self._pages) > 1:
            before = self._pages[-2].after[layer]

        def note(inputs: Inputs, after: After | None) -> None:
            page.inputs[layer] = inputs
            if after is not None:
                page.after[layer] = after() if callable(after) else after

        return LayerState(before, page.order_BT >= 0, page.block.parents_BT, page.block.sees_BTT, None, note)

    def settle(self, batch: Batch, kept: Kept) -> None:
        stand = kept.device(batch).tolist()
        for row, sequence in enumerate(batch.sequences if self._pages else ()):
            places = self._places(row, stand[row], kept)
            for number in self._pages[0].inputs:
                parts = zip(*(page.inputs[number] for page in self._pages), strict=True)
                inputs = tuple(torch.cat(part, dim=1)[row : row + 1, places] for part in parts)
                counts_B = torch.tensor([len(places)], device=self._device)
                held = self._held[id(sequence)]
                held[number] = self.layers[number].advance(held[number], inputs, counts_B)
        self._pages.clear()

    def _places(self, row: int, stand: int, kept: Kept) -> list[int]:
        """Return the places, in all pages side by side, of the tokens that stand."""
        first, block = int(self._pages[0].order_BT[row, 0]), self._pages[-1].block
        places = [*range(sum(page.block.width for page in self._pages))]
        if block.parents_BT is not None:
            own = max(-block.start, 0)
            path = [] if kept.path_BT is None else kept.path_BT[row].tolist()
            places = [*range(own), *(own + node for node in path)]
        return [place for order, place in enumerate(places, first) if 0 <= order < stand]

    def remember(self, batch: Batch) -> None:
        for one in batch.sequences:
            if one.forks:
                self._starts[id(one)] = dict(self._held[id(one)])

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes


class TestDiaries(StateStoreSuite):
    """A store that is both passes the suite."""

    temperature = 40.0

    def make(self, inner: KVBackend) -> Diaries:
        return Diaries(inner)


def test_the_backend_that_offers_states_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store is told of every forward, and no other store is opened."""
    told = list[int]()
    begin = Diary.begin
    monkeypatch.setattr(
        Diary, "begin", lambda self, batch, block: (told.append(len(batch)), begin(self, batch, block))[1]
    )
    with states.known():
        target = states.fake_state_target()
        kv = Diaries(registry().make("KV backend", standard.STORE))
        harness.check(harness.pipeline(target, None, kv=kv, batch_size=2), harness.requests([[1, 2], [3]], 4))
    assert len(told) == 4


class Notebooks:
    """Keeps keys and values in pages that rows are given when they come to need them."""

    needs = frozenset[str]()
    offers = frozenset({"scatter", "move", "paged"})

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> Notebook:
        return Notebook(shapes, rows, -(-(capacity + 1) // LINES), device)


LINES = 3
"""Slots of a page."""


class Notebook:
    """Pages of all layers, the page numbers of each sequence in order, and the numbers that nobody has."""

    slots, first = None, 0

    def __init__(self, shapes: list[KVShape], rows: int, count: int, device: torch.device) -> None:
        self.rows, self._count, self._device = rows, count, device
        self._free = [*range(rows * count)]
        self._pages: dict[int, list[int]] = {}
        self._layers = [
            tuple(
                torch.zeros(rows * count, LINES, shape.heads, size, dtype=shape.dtype, device=device)
                for size in (shape.key_size, shape.value_size)
            )
            for shape in shapes
        ]

    def arrange(self, sequences: list[Sequence]) -> None:
        for one in sequences:
            if id(one) not in self._pages:
                self._pages[id(one)] = []
                parent = self._pages.get(id(one.parent)) if one.parent else None
                if parent:
                    self._grow(one, len(parent))
                    for part in (part for parts in self._layers for part in parts):
                        part[self._pages[id(one)]] = part[parent]
        self._batch = sequences

    def _grow(self, sequence: Sequence, count: int) -> None:
        pages = self._pages[id(sequence)]
        while len(pages) < count:
            pages.append(self._free.pop())

    def expect(self, placement: Placement) -> None:
        last = int(placement.slots_BT.max())
        for one in self._batch:
            self._grow(one, max(last, placement.key_order_BS.shape[1] - 1) // LINES + 1)
        self._at = self._places(placement.slots_BT)

    def _places(self, slots_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._table().gather(1, slots_BT // LINES), slots_BT % LINES

    def _table(self) -> torch.Tensor:
        rows = [self._pages[id(one)] for one in self._batch]
        width = max(map(len, rows))
        return torch.tensor([row + row[:1] * (width - len(row)) for row in rows], device=self._device)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Paged:
        held_keys, held_values = self._layers[layer]
        held_keys[self._at], held_values[self._at] = keys.transpose(1, 2), values.transpose(1, 2)
        return Paged(held_keys, held_values, self._table(), LINES)

    def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        if targets_BT is None:
            targets_BT = torch.arange(sources_BT.shape[1], device=self._device).expand_as(sources_BT)
        for one in self._batch:
            self._grow(one, int(max(sources_BT.max(), targets_BT.max())) // LINES + 1)
        sources, targets = self._places(sources_BT), self._places(targets_BT)
        for part in (part for parts in self._layers for part in parts):
            part[targets] = part[sources]

    def reserve(self, sequence: Sequence, tokens: int) -> int | None:
        return 0

    def release(self, sequence: Sequence) -> None:
        self._free += self._pages.pop(id(sequence), [])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for parts in self._layers for part in parts)


class Reader:
    """Attends to pages after looking up those of each row."""

    needs, offers = frozenset({"paged"}), frozenset({"paged", "tree", "window"})
    expects = "any model"

    def suits(self, facts: AttentionFacts) -> bool:
        return True

    def plan(self, placement: Placement) -> Attend:
        return Reading(placement)


class Reading:
    """The attention of one forward."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def attend(self, query: torch.Tensor, view: KVView, scaling: float | None, window: int | None) -> torch.Tensor:
        assert isinstance(view, Paged)
        extent, groups = self._placement.key_order_BS.shape[1], query.shape[1] // view.keys.shape[2]
        keys, values = (
            part[view.table_BN].flatten(1, 2)[:, :extent].transpose(1, 2).repeat_interleave(groups, dim=1)
            for part in (view.keys, view.values)
        )
        scores = query @ keys.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        seen = self._placement.seen(window)[:, None]
        return (scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1) @ values).transpose(1, 2)


@pytest.mark.parametrize("seed", range(3))
def test_pages_hold_what_was_written(seed: int) -> None:
    """The store keeps what every store keeps that writes any slot."""

    class Suite(KVBackendSuite):
        def make(self) -> Notebooks:
            return Notebooks()

    Suite().test_scatter(seed)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("options", [{}, {"check": True}, {"schedule": standard.READING_IN_PIECES}], ids=str)
def test_pages_decode(name: str, options: dict[str, Any]) -> None:
    """Store and attention work where nothing but their protocols' members can be seen."""
    target = zoo.build(name)
    kv, attention = strict(Notebooks(), KVBackend), strict(Reader(), AttentionBackend)
    given = {"kv": kv, "attention": attention, "batch_size": 2, "draft_length": 3, **options}
    asked = harness.requests(harness.random_prompts([5, 14, 1, 9], zoo.VOCABULARY), [9, 4, 12, 7], {zoo.EOS})
    harness.check(harness.pipeline(target, zoo.good_draft(target), **given), asked)
