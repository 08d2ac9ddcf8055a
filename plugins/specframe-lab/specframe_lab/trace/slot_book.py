"""Content of every slot of one KV cache, followed through the calls that write and move slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from specframe_testing.instrumentation.instrumented import CallListener

from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch, Kept, Sequence
from specframe.row_map import RowMap

NOTHING = -1
"""In place of a cell's number: the slot holds no token."""


@attrs.define
class Cell:
    """One token's key and value, written once: a token fed again is another cell."""

    prompt: int
    order: int
    """Place among its row's tokens."""
    position: int
    """Position id that the token was fed with."""
    round: int
    token: int = NOTHING
    node: int = NOTHING
    """Node of the draft in a tree that has not been verified yet."""
    left: bool = False
    """Whether it is what was left behind when the token was moved to another slot."""


class SlotBook(CallListener):
    """Follows one cache: which cell is in which slot of which sequence, and how far rows are moved.

    Sequences are known by the index of their request. ``fed`` is called as (book, batch, block, placement) before a forward
    pass; its cells are in the book from :meth:`write` on.
    """

    def __init__(self, rows: int, fed: Callable[..., Any]) -> None:
        self._fed = fed
        self.cells: list[Cell] = []
        self.slots: dict[int, list[int]] = {}
        """The number of the cell in each slot, of every live sequence that has something cached."""
        self.paths: dict[int, set[int]] = {}
        """The committed nodes of the tree fed last."""
        self.cached: dict[int, int] = {}
        """Committed tokens that are cached: a cell beyond them was forgotten."""
        self.rows: dict[int, int] = {}
        self._latest: dict[tuple[int, int], int] = {}
        self._sequences: dict[int, Sequence] = {}
        self._batch: list[Sequence] = []
        self._row_map = RowMap(rows, anywhere=True)
        self.reset()

    def reset(self) -> None:
        """Count moves from here on."""
        self.shifted = self.carried = 0
        self.offsets: dict[int, int] = {}
        self.moved_from: dict[int, int] = {}

    @property
    def batch(self) -> list[int]:
        """The sequences of the batch, by row."""
        return [sequence.request.index for sequence in self._batch]

    def stands(self, number: int) -> bool:
        """Return whether a cell is its row's token at its place, and not forgotten."""
        cell = self.cells[number]
        if cell.node != NOTHING and cell.node not in self.paths.get(cell.prompt, ()):
            return False
        return self.newest(number) and cell.order < self.cached[cell.prompt]

    def newest(self, number: int) -> bool:
        """Return whether no later cell holds its row's token at the same place; a tree may have several."""
        cell = self.cells[number]
        return not cell.left and (cell.node != NOTHING or self._latest.get((cell.prompt, cell.order)) == number)

    def close_tree(self, prompt: int, path: list[int]) -> None:
        """Let the nodes on a path be their row's tokens, and the other nodes of its tree none."""
        for number in set(self.slots.get(prompt, ())) - {NOTHING}:
            cell = self.cells[number]
            if cell.node in path and not cell.left:
                self._latest[prompt, cell.order] = number
            cell.node = NOTHING
        self.paths.pop(prompt, None)

    def arranged(self, sequences: list[Sequence]) -> None:
        """Make ``sequences`` the rows. A sequence that changes its row takes its cells along; finished sequences are removed."""
        if sequences is self._batch:
            return
        self._batch = sequences
        self._sequences.update((sequence.request.index, sequence) for sequence in sequences)
        self._row_map.arrange(sequences)
        for prompt, sequence in list(self._sequences.items()):
            if sequence.finished:
                del self._sequences[prompt]
                self.slots.pop(prompt, None)
                self.rows.pop(prompt, None)
            elif (row := self._row_map.row(sequence)) is not None:
                self._take_row(prompt, row)

    def _take_row(self, prompt: int, row: int) -> None:
        if self.rows.setdefault(prompt, row) != row:
            self.carried += self._standing(prompt)
            self.moved_from.setdefault(prompt, self.rows[prompt])
            self.rows[prompt] = row

    def _standing(self, prompt: int) -> int:
        return sum(number != NOTHING and self.stands(number) for number in self.slots.get(prompt, ()))

    def moved(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """Move slots of the batch's rows; without targets the first ones take the sources, and no others are kept."""
        sources, targets = sources_BT.tolist(), None if targets_BT is None else targets_BT.tolist()
        for row, prompt in enumerate(self.batch):
            held = self.slots.get(prompt, [])
            taken = [held[source] if source < len(held) else NOTHING for source in sources[row]]
            if targets is None:
                self._shifted(prompt, len(taken) - 1 - sources[row][-1] if taken else 0)
                after = [*taken[1:], NOTHING]  # of slots that take the same cell all but the last are padding
                self.slots[prompt] = [NOTHING if a == b else a for a, b in zip(taken, after, strict=True)]
            else:
                held.extend([NOTHING] * (max(targets[row], default=-1) + 1 - len(held)))
                for source in set(sources[row]) - set(targets[row]):
                    held[source] = self._copied(held[source]) if source < len(held) else NOTHING
                for target, number in zip(targets[row], taken, strict=True):
                    held[target] = number

    def _copied(self, number: int) -> int:
        """Return the cell that is left behind where a token was moved away from."""
        if number == NOTHING:
            return NOTHING
        self.cells.append(attrs.evolve(self.cells[number], left=True))
        return len(self.cells) - 1

    def _shifted(self, prompt: int, offset: int) -> None:
        """Count a row that is shifted by ``offset`` slots."""
        if offset:
            self.shifted += self._standing(prompt)
            self.offsets[prompt] = self.offsets.get(prompt, 0) + offset

    def settled(self, batch: Batch, kept: Kept) -> None:
        """Forget all tokens but the kept ones."""
        counts, path_BT = kept.host(batch), kept.path_BT
        for sequence, count in zip(batch.sequences, counts.tolist(), strict=True):
            prompt = sequence.request.index
            self.cached[prompt] = min(count, self.cached.get(prompt, 0))
        if path_BT is not None:
            for sequence, length, count, path in zip(
                batch.sequences, batch.lengths, counts, path_BT.tolist(), strict=True
            ):
                self.paths[sequence.request.index] = set(path[: max(0, int(count - length))])

    def placed(self, placement: Placement, batch: Batch, block: Block) -> None:
        """Report a forward pass."""
        self._fed(self, batch, block, placement)

    def write(self, batch: Batch, block: Block, placement: Placement, round_number: int) -> None:
        """Put the tokens that are fed in their slots."""
        depths = block.depth_BT().expand(len(batch), -1).tolist()
        extent = placement.key_index_BS.shape[1]
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
                    held[slot] = len(self.cells)
                    token = int(batch.tokens_BS[row, order]) if order < batch.lengths[row] else NOTHING
                    node = place + block.start if block.parents_BT is not None and token == NOTHING else NOTHING
                    if node == NOTHING:
                        self._latest[prompt, order] = held[slot]
                    self.cells.append(Cell(prompt, order, positions_BT[row][place], round_number, token, node))
                elif slot < len(held):
                    held[slot] = NOTHING
            self.cached[prompt] = max(start + max(depths[row]) + 1, 0)
