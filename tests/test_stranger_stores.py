"""A KV backend that keeps states, whose author knows the contracts alone."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest
import torch
from specframe_testing import harness, standard, states
from specframe_testing.conformance import StateStoreSuite

from specframe.contracts.cache import KVBackend, KVShape, KVStore, KVView, Placement
from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch, Kept, Sequence
from specframe.contracts.states import After, Inputs, LayerState, Parts, StateLayer
from specframe.plugins.registry import registry


class Diaries:
    """Keeps the states of each sequence by its identity, with the keys and values of another backend."""

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
    """One forward: its tokens' indices, and what layers have reported."""

    block: Block
    index_BT: torch.Tensor
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
        index_BT = batch.lengths_B[:, None] + block.start + block.depth_BT()
        self._pages.append(Page(block, index_BT))

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

        return LayerState(before, page.index_BT >= 0, page.block.parents_BT, page.block.sees_BTT, None, note)

    def commit(self, batch: Batch, kept: Kept) -> None:
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
        """Return the places, in all pages side by side, of the kept tokens."""
        first, block = int(self._pages[0].index_BT[row, 0]), self._pages[-1].block
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


@pytest.mark.wide(but=["test_chains[exspec-8]"])
class TestDiaries(StateStoreSuite):
    """A store that is both passes the suite."""

    temperature = 40.0

    def make(self, inner: KVBackend) -> Diaries:
        return Diaries(inner)


def test_the_backend_that_offers_states_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store receives every forward, and no other store is opened."""
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
