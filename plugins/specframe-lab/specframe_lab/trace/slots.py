"""What sits in every slot of one KV cache, told from the calls that fill and move it."""

from __future__ import annotations

from typing import Any, Protocol

import attrs
import numpy as np
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Block, Draft, Verdict
from specframe.contracts.layout import Layout
from specframe.contracts.roles import Alignment
from specframe.contracts.round import Batch, Sequence
from specframe.contracts.rows import Seating
from specframe.forward.run import Run

NOTHING = -1
"""In place of a cell's number: the slot holds no token."""


@attrs.define
class Cell:
    """One token's key and value, written once: a token fed again is another cell."""

    prompt: int
    order: int
    """Place among its row's tokens."""
    position: int
    """The position id it was fed with."""
    round: int
    token: int = NOTHING


class SlotBook:
    """Follows one cache: which cell is in which slot of which sequence, and how far rows are moved.

    Sequences are known by the index of their request.
    """

    def __init__(self, rows: int) -> None:
        self.cells: list[Cell] = []
        self.slots: dict[int, list[int]] = {}
        """The number of the cell in each slot, of every live sequence that has something cached."""
        self.cached: dict[int, int] = {}
        """Tokens cached that stand: a cell beyond them was forgotten."""
        self.rows: dict[int, int] = {}
        self._latest: dict[tuple[int, int], int] = {}
        self._sequences: dict[int, Sequence] = {}
        self._batch: list[Sequence] = []
        self._seating = Seating(rows, anywhere=True)
        self.reset()

    def reset(self) -> None:
        """Count moves from here on."""
        self.shifted = self.carried = 0
        self.offsets: dict[int, int] = {}
        self.reseated: dict[int, int] = {}

    @property
    def batch(self) -> list[int]:
        """The sequences of the batch, by row."""
        return [sequence.request.index for sequence in self._batch]

    def stands(self, number: int) -> bool:
        """Return whether a cell is its row's token at its place, and not forgotten."""
        cell = self.cells[number]
        return self.newest(number) and cell.order < self.cached[cell.prompt]

    def newest(self, number: int) -> bool:
        """Return whether no later cell holds its row's token at the same place."""
        cell = self.cells[number]
        return self._latest[cell.prompt, cell.order] == number

    def arrange(self, sequences: list[Sequence]) -> None:
        """Make ``sequences`` the rows; what changes its row is carried there, what has finished is gone."""
        if sequences is self._batch:
            return
        self._batch = sequences
        self._sequences.update((sequence.request.index, sequence) for sequence in sequences)
        self._seating.arrange(sequences)
        for prompt, sequence in list(self._sequences.items()):
            if sequence.finished:
                del self._sequences[prompt]
                self.slots.pop(prompt, None)
                self.rows.pop(prompt, None)
            elif (row := self._seating.row(sequence)) is not None:
                self._seat(prompt, row)

    def _seat(self, prompt: int, row: int) -> None:
        if self.rows.setdefault(prompt, row) != row:
            self.carried += self._standing(prompt)
            self.reseated.setdefault(prompt, self.rows[prompt])
            self.rows[prompt] = row

    def _standing(self, prompt: int) -> int:
        return sum(number != NOTHING and self.stands(number) for number in self.slots.get(prompt, ()))

    def move(self, sources: list[list[int]], targets: list[list[int]] | None) -> None:
        """Move slots of the batch's rows; without targets the first ones take the sources, and no others are kept."""
        for row, prompt in enumerate(self.batch):
            held = self.slots.get(prompt, [])
            taken = [held[source] if source < len(held) else NOTHING for source in sources[row]]
            if targets is None:
                self._shifted(prompt, len(taken) - 1 - sources[row][-1] if taken else 0)
                self.slots[prompt] = taken
            else:
                held.extend([NOTHING] * (max(targets[row], default=-1) + 1 - len(held)))
                for target, number in zip(targets[row], taken, strict=True):
                    held[target] = number

    def _shifted(self, prompt: int, offset: int) -> None:
        """Count a row that is shifted by so many slots."""
        if offset:
            self.shifted += self._standing(prompt)
            self.offsets[prompt] = self.offsets.get(prompt, 0) + offset

    def keep(self, batch: Batch, kept: np.ndarray) -> None:
        """Forget all but the first ``kept[i]`` tokens of row i."""
        for sequence, count in zip(batch.sequences, kept.tolist(), strict=True):
            prompt = sequence.request.index
            self.cached[prompt] = min(count, self.cached.get(prompt, 0))

    def write(self, batch: Batch, block: Block, placement: Placement, round_number: int) -> None:
        """Put the tokens that are fed in their slots."""
        depths = block.depth_BT().expand(len(batch), -1).tolist()
        extent = placement.key_order_BS.shape[1]
        slots_BT, positions_BT = placement.slots_BT.tolist(), placement.positions_BT.tolist()
        for row, prompt in enumerate(self.batch):
            start = int(batch.lengths[row]) + block.start
            held = self.slots.setdefault(prompt, [])
            held.extend([NOTHING] * (extent - len(held)))
            while len(held) > extent and held[-1] == NOTHING:
                held.pop()
            for place, depth in enumerate(depths[row]):
                order = start + depth
                slot = slots_BT[row][place]
                if order >= 0:
                    self._latest[prompt, order] = held[slot] = len(self.cells)
                    token = int(batch.tokens_BS[row, order]) if order < batch.lengths[row] else NOTHING
                    self.cells.append(Cell(prompt, order, positions_BT[row][place], round_number, token))
                elif slot < len(held):
                    held[slot] = NOTHING
            self.cached[prompt] = max(start + max(depths[row]) + 1, 0)


class Notes(Protocol):
    """Who is told of an alignment's calls."""

    def start(self, run: Run) -> None:
        """A run starts; the layout of each of its caches is a :class:`NotedLayout`."""

    def fed(self, book: SlotBook, batch: Batch, block: Block, placement: Placement) -> None:
        """A forward pass is about to run; its cells are not in the book yet."""

    def judged(self, verdict: Verdict) -> None:
        """An acceptance rule has given its verdict."""


class NotedAlignment:
    """An alignment whose layouts and verdicts are noted."""

    def __init__(self, alignment: Alignment, notes: Notes) -> None:
        self.__wrapped__ = self._alignment = alignment
        self._notes = notes
        self.needs, self.offers = alignment.needs, alignment.offers
        self.scheduler, self.kv = alignment.scheduler, alignment.kv

    def start(self, run: Run) -> None:
        """Start the notes, then the alignment."""
        self._notes.start(run)
        self._alignment.start(run)

    def layout(self, store: KVStore, rows: int, capacity: int) -> NotedLayout:
        """Return the alignment's layout, on a store whose moves are noted."""
        book = SlotBook(rows)
        return NotedLayout(self._alignment.layout(NotedStore(store, book), rows, capacity), book, self._notes)

    def commit(self, batch: Batch, draft: Draft, verdict: Verdict) -> Verdict:
        """Note what was judged and return what stands."""
        self._notes.judged(verdict)
        return self._alignment.commit(batch, draft, verdict)


class NotedLayout:
    """A layout whose placements are noted."""

    def __init__(self, layout: Layout, book: SlotBook, notes: Notes) -> None:
        self._layout, self.book, self._notes = layout, book, notes
        self.static = layout.static

    def arrange(self, batch: Batch) -> None:
        """Pass on."""
        self._layout.arrange(batch)

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return the layout's placement after noting it."""
        placement = self._layout.place(batch, block)
        self._notes.fed(self.book, batch, block, placement)
        return placement

    def keep(self, batch: Batch, kept: np.ndarray, path_BT: torch.Tensor | None = None) -> None:
        """Pass on."""
        self._layout.keep(batch, kept, path_BT)
        self.book.keep(batch, kept)


class NotedStore:
    """A KV store as a layout sees it, whose moves are noted."""

    def __init__(self, store: KVStore, book: SlotBook) -> None:
        self._store, self._book = store, book

    def arrange(self, sequences: list[Sequence]) -> None:
        """Arrange the store."""
        self._store.arrange(sequences)
        self._book.arrange(sequences)

    def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """Move slots of the store."""
        self._book.move(sources_BT.tolist(), None if targets_BT is None else targets_BT.tolist())
        self._store.move(sources_BT, targets_BT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
