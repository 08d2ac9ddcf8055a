"""KV backends: a store holds what was written, where it was written, for whom it was written.

A store is compared with a model of it made of dictionaries: per sequence, the numbers that each slot holds. What a slot
holds that was never written is anyone's guess.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from specframe.contracts.cache import KVShape, KVView, PagedView, Placement, rounding
from specframe.contracts.requests import Request
from specframe.contracts.round import Sequence as LiveSequence
from specframe.contracts.round import SequenceState
from specframe.model.attention.interface import gather_slots
from specframe.plugins.registry import registry
from specframe_testing import harness
from specframe_testing.conformance.decoding_suite import DecodingSuite, fake_pair, usual_requests

SHAPES = [
    KVShape(2, 3, 4, torch.float32),
    KVShape(1, 5, 5, torch.float32),
    KVShape(2, 3, 4, torch.float32),
]
"""Layers of two shapes, keys of one size and values of another."""

CAPACITY = 40


class Bookkeeper:
    """A store and the model of it, driven together."""

    def __init__(self, backend: Any, rows: int) -> None:
        self.offers = backend.offers
        self.rounded = rounding(backend) or torch.clone
        """What comes back of keys or values."""
        self.store = backend.open(SHAPES, rows, CAPACITY, harness.device())
        self.held: dict[int, dict[int, int]] = {}
        """Per sequence: the stamp written to each slot."""
        self.batch: list[LiveSequence] = []
        self._stamp = 0

    def arrange(self, sequences: list[LiveSequence]) -> None:
        """Make these sequences the batch."""
        self.store.arrange(sequences)
        self.batch = sequences
        for sequence in sequences:
            self.held.setdefault(id(sequence), {})

    def write(
        self, slots: np.ndarray, extent: int, chosen: np.ndarray | None = None, first_row: int | None = None
    ) -> None:
        """Write one stamp per fed token at these slots (B, T) and check all slots up to ``extent``, or those ``chosen`` (B, N)."""
        stamps = np.arange(self._stamp, self._stamp + slots.size).reshape(slots.shape)
        self._stamp += slots.size
        for sequence, places, row in zip(self.batch, slots, stamps, strict=True):
            self.held[id(sequence)].update(zip(places.tolist(), row.tolist(), strict=True))
        slots_BT = torch.from_numpy(slots).to(harness.device())
        index_BS = torch.arange(extent, device=harness.device())[None]
        chosen_BN = None if chosen is None else torch.from_numpy(chosen).to(harness.device())
        places = Placement(slots_BT, slots_BT, slots_BT, index_BS, attended_BS=chosen_BN, first_row=first_row)
        self.store.expect(places)
        for layer, shape in enumerate(SHAPES):
            keys, values = (
                stamped(stamps, layer, shape.heads, size, part)
                for part, size in enumerate((shape.key_size, shape.value_size))
            )
            if hasattr(type(self.store), "places") and layer == 1:
                view = self._written_directly(layer, keys, values)
            else:
                view = self.store.write(layer, keys, values)
            assert ("paged" if isinstance(view, PagedView) else "dense") in self.offers
            handed = np.arange(extent)[None].repeat(len(slots), 0) if chosen is None else chosen
            held = gather_slots(view, handed.shape[1])
            self._check(held.keys, layer, shape.heads, shape.key_size, 0, handed)
            self._check(held.values, layer, shape.heads, shape.value_size, 1, handed)

    def _written_directly(self, layer: int, *states: torch.Tensor) -> KVView:
        """Write to the memory of a store as the code of a forward does."""
        places_N = self.store.places().flatten()
        for memory, one in zip(self.store.memory(layer), states, strict=True):
            memory[places_N] = one.transpose(1, 2).flatten(0, 1)
        view: KVView = self.store.view(layer)
        return view

    def _check(self, got: torch.Tensor, layer: int, heads: int, size: int, part: int, handed: np.ndarray) -> None:
        assert got.shape == (len(self.batch), heads, handed.shape[1], size)
        for row, sequence in enumerate(self.batch):
            held = self.held[id(sequence)]
            known = {place: held[slot] for place, slot in enumerate(handed[row].tolist()) if slot in held}
            want = self.rounded(stamped(np.array([list(known.values())]), layer, heads, size, part))[0]
            assert torch.equal(got[row][:, list(known)], want), f"layer {layer} of row {row} holds something else"

    def shift(self, offsets: np.ndarray, width: int) -> None:
        """Shift the rows of the batch and drop slots beyond the ends; a shift by 0 only cuts."""
        if offsets.any():
            sources_BT = np.clip(np.arange(width) - offsets[:, None], 0, None)
            self.store.move(torch.from_numpy(sources_BT).to(harness.device()))
        for sequence, offset in zip(self.batch, offsets.tolist(), strict=True):
            moved = {slot + offset: stamp for slot, stamp in self.held[id(sequence)].items()}
            self.held[id(sequence)] = {slot: stamp for slot, stamp in moved.items() if 0 <= slot < width}


def stamped(stamps: np.ndarray, layer: int, heads: int, size: int, part: int) -> torch.Tensor:
    """Return states (B, H, T, D) in which every number has its stamp, layer, head, place and part."""
    rows, length = stamps.shape
    base = torch.from_numpy(stamps).float()[:, None, :, None] * 128 + layer * 32 + part * 16
    made = base + (torch.arange(heads)[:, None] * 8 + torch.arange(size)[None])[None, :, None].expand(
        rows, heads, length, size
    )
    return made.to(harness.device())


def sequences_of(count: int) -> list[LiveSequence]:
    """Return live sequences."""
    return [LiveSequence(Request(index, [1], 1), 2) for index in range(count)]


class KVBackendSuite(DecodingSuite):
    """Tests of a KV backend: each operation it says it offers, and decoding under each alignment it can carry."""

    role = "KV backend"

    def surroundings(self) -> Sequence[dict[str, Any]]:
        """Return every registered alignment that the backend can carry."""
        backend, known = self.object(), registry()
        names = [n for n in known.names("alignment") if self.carries(known.make("alignment", n), backend)]
        return [{"align": name} for name in names]

    @staticmethod
    def carries(alignment: Any, backend: Any) -> bool:
        """Say whether a lossless alignment can run on the backend."""
        return "lossless" in alignment.offers and alignment.needs <= backend.offers

    def pipeline(self, target: Any, draft: Any = None, **options: Any) -> Any:
        """Return a pipeline under an alignment that fits, by default the first."""
        return super().pipeline(target, draft, **{**self.surroundings()[0], **options})

    def require(self, *operations: str) -> None:
        """Skip a test of a feature that the backend does not offer."""
        if missing := set(operations) - self.object().offers:
            pytest.skip(f"this backend does not offer {', '.join(sorted(missing))}")

    def begun(self, rows: int, slots: int) -> tuple[Bookkeeper, list[LiveSequence]]:
        """Return a store with a batch of rows that have as many slots written, and the rows' sequences."""
        book, batch = Bookkeeper(self.object(), rows), sequences_of(rows)
        book.arrange(batch)
        book.write(np.arange(slots)[None].repeat(rows, 0), slots)
        return book, batch

    def test_serves_an_alignment(self) -> None:
        """The backend's features suffice for at least one alignment; the backend may offer further features."""
        assert self.surroundings()

    @pytest.mark.parametrize("seed", range(3))
    def test_scatter(self, seed: int) -> None:
        """Tokens written to slots of each row's own stay there until they are overwritten, in any batch."""
        self.require("scatter")
        choose, everyone = random.Random(seed), sequences_of(6)
        book, ends = Bookkeeper(self.object(), 6), dict.fromkeys(range(6), 0)
        for _ in range(25):
            batch = choose.sample(everyone, choose.randint(1, 4))
            book.arrange(batch)
            width = choose.randint(1, 4)
            starts = [max(0, min(ends[s.request.index], CAPACITY - width) - choose.randint(0, 2)) for s in batch]
            for sequence, start in zip(batch, starts, strict=True):
                ends[sequence.request.index] = start + width
            book.write(np.array(starts)[:, None] + np.arange(width), max(starts) + width)

    @pytest.mark.parametrize("seed", range(3))
    def test_append_and_shift(self, seed: int) -> None:
        """Columns appended for all rows, cut and shifted until rows end together, keep what each row holds."""
        self.require("append", "move")
        choose, everyone = random.Random(seed), sequences_of(6)
        book, ends = Bookkeeper(self.object(), 6), dict.fromkeys(range(6), 0)
        for _ in range(25):
            batch = choose.sample(everyone, choose.randint(1, 4))
            book.arrange(batch)
            for sequence in batch:
                index = sequence.request.index
                cut = choose.randint(0, 3) if ends[index] < 30 else 20
                ends[index] = max(0, ends[index] - cut)
            column = max(ends[sequence.request.index] for sequence in batch)
            book.shift(np.array([column - ends[sequence.request.index] for sequence in batch]), column)
            width = choose.randint(1, 4)
            book.write(np.arange(column, column + width)[None].repeat(len(batch), 0), column + width)
            ends.update({sequence.request.index: column + width for sequence in batch})

    def test_shift_left(self) -> None:
        """Rows shift left when the padding that was on their left is no longer needed."""
        self.require("append", "move")
        book, _ = self.begun(2, 6)
        book.shift(np.array([-2, -3]), 3)
        book.write(np.arange(3, 5)[None].repeat(2, 0), 5)

    def test_paths_are_moved(self) -> None:
        """The slots of a path are moved to the row's end all at once, other slots and rows stay as they are."""
        self.require("move")
        book, batch = self.begun(3, 10)
        sources, targets = np.array([[5, 4, 8], [4, 7, 9], [6, 3, 5]]), np.array([[4, 5, 6], [4, 5, 6], [3, 4, 5]])
        book.store.move(torch.from_numpy(sources), torch.from_numpy(targets))
        for sequence, old, new in zip(batch, sources.tolist(), targets.tolist(), strict=True):
            held = book.held[id(sequence)]
            held.update(dict(zip(new, [held[slot] for slot in old], strict=True)))
        book.write(np.arange(10, 12)[None].repeat(3, 0), 12)

    def test_paths_of_rows_that_join_are_moved(self) -> None:
        """In a mixed batch its own slots are moved and theirs stay."""
        self.require("move")
        book, everyone = self.third_joins()
        book.store.move(torch.tensor([[4, 5]]), torch.tensor([[2, 3]]))
        held = book.held[id(everyone[2])]
        held.update({2: held[4], 3: held[5]})
        for batch in (everyone[2:], everyone[:2]):
            book.arrange(batch)
            book.write(np.arange(6, 8)[None].repeat(len(batch), 0), 8)

    @pytest.mark.parametrize("rows", [1, 3])
    def test_chosen_slots_are_handed_out(self, rows: int) -> None:
        """A forward that attends to chosen slots is given these, in their order; the next one is given all again."""
        self.require("gather")
        book, batch = Bookkeeper(self.object(), 3), sequences_of(rows)
        book.arrange(batch)
        book.write(np.arange(9)[None].repeat(rows, 0), 9)
        chosen = np.array([[0, 7, 8, 9, 10], [9, 10, 2, 2, 0], [10, 9, 8, 5, 4]])[:rows]
        book.write(np.arange(9, 11)[None].repeat(rows, 0), 11, chosen)
        book.write(np.arange(11, 12)[None].repeat(rows, 0), 12)

    def third_joins(self) -> tuple[Bookkeeper, list[LiveSequence]]:
        """Return a store with three sequences of six slots each, of which two decode and the third, which is the batch, reads."""
        book, everyone = Bookkeeper(self.object(), 3), sequences_of(3)
        for sequence in everyone:
            sequence.state = SequenceState.DECODING
        everyone[2].state = SequenceState.READING
        for batch in (everyone[:2], everyone[2:]):
            book.arrange(batch)
            book.write(np.arange(6)[None].repeat(len(batch), 0), 6)
        return book, everyone

    def test_chosen_slots_of_rows_that_join(self) -> None:
        """In a mixed batch its own slots are handed out."""
        self.require("gather")
        book, _ = self.third_joins()
        book.write(np.arange(6, 7)[None], 7, np.array([[5, 2, 6]]))

    def test_forwards_begin_at_any_row(self) -> None:
        """A forward of all rows reads and writes each row's own while the batch is the last row alone."""
        self.require("any-row")
        book, everyone = self.third_joins()
        assert book.store.first == 2
        book.batch = everyone
        book.write(np.arange(6, 8)[None].repeat(3, 0), 8, first_row=0)
        for batch in (everyone[2:], everyone[:2]):
            book.arrange(batch)
            book.write(np.arange(8, 9)[None].repeat(len(batch), 0), 9)

    def test_cut_without_moving(self) -> None:
        """A shift by nothing only cuts."""
        self.require("append", "move")
        book, _ = self.begun(2, 6)
        book.shift(np.array([0, 0]), 4)
        book.write(np.arange(4, 5)[None].repeat(2, 0), 5)

    def test_grow(self) -> None:
        """Columns go on being appended past the capacity, and a row that was out of the batch finds its own again."""
        self.require("append", "grow")
        everyone = sequences_of(3)
        book, column = Bookkeeper(self.object(), 3), 0
        for turn in range(CAPACITY):
            batch = everyone if turn % 3 else everyone[:2]
            book.arrange(batch)
            book.write(np.arange(column, column + 2)[None].repeat(len(batch), 0), column + 2)
            column += 2

    def test_sequences_come_and_go(self) -> None:
        """A finished sequence's row serves another, and those that stay out of the batch lose nothing meanwhile."""
        book, everyone = Bookkeeper(self.object(), 3), sequences_of(8)
        append = "append" in self.object().offers
        for turn in range(6):
            batch = [everyone[turn + 1], everyone[turn]] if turn % 2 else [everyone[turn], everyone[turn + 1]]
            book.arrange(batch)
            if append:
                column = 3 * (turn > 0)
                book.shift(np.array([column - max(book.held[id(s)], default=-1) - 1 for s in batch]), column)
                book.write(np.arange(column, column + 3)[None].repeat(2, 0), column + 3)
                book.shift(np.array([0, 0]), 3)
            else:
                book.write(np.arange(turn, turn + 3)[None].repeat(2, 0), turn + 3)
            everyone[turn].finish("eos")

    def test_bytes_are_counted(self) -> None:
        """A store says how many bytes it holds, at least those of what was written: 4 of each number, or 1 where it is rounded."""
        book, _ = self.begun(2, 4)
        each = 1 if "rounded" in book.offers else 4
        written = 2 * 4 * sum(each * shape.heads * (shape.key_size + shape.value_size) for shape in SHAPES)
        assert book.store.nbytes >= written

    def test_positions_do_not_come_from_the_store(self) -> None:
        """Models always receive their positions, and a run counts the store's bytes."""
        target, draft = fake_pair()
        feeds = harness.Feeds()
        pipe = self.pipeline(target, draft, observers=[feeds])
        self.verify(pipe, usual_requests(target))
        assert pipe.report.peak_kv_bytes > 0
