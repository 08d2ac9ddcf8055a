"""States that are kept of rows for others that begin alike: the states after some of a prompt's blocks, by all tokens before.

A state cannot be cut back. A row that begins after n tokens of another needs the state after exactly n tokens, so some are computed
while a prompt is read: what its layers have noted of a prefill chunk is taken in up to each of these places. No chunk ends there.

Tensor names carry their shape: N rows of which a state is kept, T tokens of a block, P tokens between two places.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

import attrs
import numpy as np
import torch

from specframe.contracts import states
from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch, Kept, Sequence
from specframe.contracts.states import After, Inputs, Parts
from specframe.devices.kinds import on_device
from specframe.row_map import Moves
from specframe_std.states.row_states import Fed, RowStates


@attrs.define(eq=False)
class PrefixReading:
    """A sequence whose prompt is read, and the states of it that are kept."""

    keys: list[bytes]
    """What identifies the tokens up to the end of each complete block of its prompt."""
    marks: list[int]
    """The blocks after which its state is kept."""
    begins: int = 0
    """The blocks after which its row is to begin, or 0 for its first token, or if it has begun."""


@attrs.frozen(eq=False)
class StateStep:
    """What rows take in from one place at which their states are kept to the next."""

    within_N: torch.Tensor
    """The rows, among those of the step before; among all of the batch in the first step."""
    rows_N: torch.Tensor
    """The rows, among all of the batch."""
    places_NP: torch.Tensor
    """The places of the block that they take in."""
    counts_N: torch.Tensor
    """How many of these mean something."""
    numbers_N: torch.Tensor
    """The numbers of the copies that are taken then."""

    def to(self, device: torch.device) -> StateStep:
        """Return the step on a device."""
        return StateStep(*(one.to(device) for one in attrs.astuple(self)))


class KeptStates(RowStates):
    """States of rows, and copies of some by the tokens that they have taken in. The least recently used are given up.

    Copies are of prompts alone: some models take in a prompt's token in another way than one that they have generated. They are
    taken after ``stride`` tokens, twice as many, four times as many and so on: of a long prompt a few, and who begins alike reads
    less than a half of that again, and a stride. There is another one where that ends, so that the next one reads nothing of it,
    and one at the end of the last block before the prompt's last token, where its chat goes on.

    Args:
        layers: the modules with states, as they are numbered.
        rows: the sequences that there is room for.
        device: where states are, if their shape names no other.
        most: copies that are kept.
        block: tokens of a block.
        stride: tokens before the first copy.
        keys: yields what identifies the tokens up to the end of each complete block.
    """

    def __init__(
        self,
        layers: Mapping[int, states.StateLayer],
        rows: int,
        device: torch.device,
        most: int,
        block: int,
        stride: int,
        keys: Callable[[list[int]], Iterator[bytes]],
    ) -> None:
        super().__init__(layers, rows, device)
        self._block, self._stride, self._keys = block, stride, keys
        self._copies, self._free = self._zeros(most), [*range(most)]
        self._number: OrderedDict[bytes, int] = OrderedDict()
        """The number of the copy of each key, the one that is given up next first."""
        self._coming: dict[bytes, int] = {}
        """The same of copies that are taken in the forward under way."""
        self._reading = weakref.WeakKeyDictionary[Sequence, PrefixReading]()
        """By sequence: one that was never admitted, since memory ran out, holds on to no copy."""
        self._steps: list[StateStep] = []

    def widen(self, rows: int) -> None:
        """Serve a run of ``rows`` rows; copies stay."""
        if rows != len(self._count):
            self._furnish(rows)

    def begin_after(self, sequence: Sequence, tokens: int) -> int:
        """Return after how many of its first ``tokens`` tokens a sequence can begin; its row begins there."""
        for ended in [one for one in self._reading if one.gone]:
            del self._reading[ended]
        if sequence.parent is not None:
            return 0
        blocks = tokens // self._block
        if (reading := self._reading.get(sequence)) is None:
            prompt = sequence.request.prompt_ids
            reading = PrefixReading([*self._keys(prompt)], self._marks(len(prompt) - 1, blocks))
            self._reading[sequence] = reading
        reading.begins = self.reach(reading.keys[:blocks])
        if reading.begins:
            self._number.move_to_end(reading.keys[reading.begins - 1])
        return reading.begins * self._block

    def reach(self, keys: list[bytes]) -> int:
        """Return after how many of these blocks, at most, there is a copy of a state."""
        return max((end for end, key in enumerate(keys, 1) if key in self._number), default=0)

    def keep_after(self, sequence: Sequence, blocks: int) -> None:
        """Keep a copy after ``blocks`` blocks of a sequence whose prompt is read: another waits to begin there."""
        if reading := self._reading.get(sequence):
            reading.marks = sorted({*reading.marks, blocks})

    def _marks(self, tokens: int, cached: int) -> list[int]:
        """Return the blocks of ``tokens`` tokens after which copies are taken; others have the ``cached`` first blocks as well."""
        complete, after = tokens // self._block, math.ceil(self._stride / self._block)
        doubled = (after << times for times in range(complete.bit_length()))
        return sorted({mark for mark in (*doubled, cached, complete) if 0 < mark <= complete})

    def _begin(self, moves: Moves, sequences: list[Sequence]) -> None:
        super()._begin(moves, sequences)
        for row in moves.fresh:
            reading = self._reading.get(sequences[row - self._rows.start])
            if reading is not None and reading.begins:
                number = self._number[reading.keys[reading.begins - 1]]
                for part, copies in self._parts():
                    part[row] = copies[number]
                self._count[row], reading.begins = reading.begins * self._block, 0

    def _parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the states of rows and the copies of each part of each layer."""
        for layer, parts in self._held.items():
            yield from zip(parts, self._copies[layer], strict=True)

    def begin(self, batch: Batch, block: Block) -> None:
        """Begin a forward, and see what copies are taken of it: where rows' own tokens are fed."""
        super().begin(batch, block)
        self._free += self._coming.values()  # of a discarded forward
        self._coming, self._steps = {}, []
        if self._reading and len(self._fed) == 1 and block.end <= 0 and block.parents_BT is None:
            self._plan(batch.sequences, block)

    def _plan(self, sequences: list[Sequence], block: Block) -> None:
        """Find the places at which copies are taken, and the steps from each to the next."""
        passed = [self._passed(sequence, row) for row, sequence in enumerate(sequences)]
        rows, reached = [*range(len(sequences))], self._first.copy()
        for step in range(max(map(len, passed))):
            going = [row for row in rows if len(passed[row]) > step]
            ends, numbers = np.array([passed[row][step] for row in going]).T
            counts, first = ends - reached[going], block.width - self._end[going] + reached[going]
            places_NP = (first[:, None] + np.arange(counts.max())).clip(max=block.width - 1)
            found = [rows.index(row) for row in going], going, places_NP, counts, numbers
            self._steps.append(StateStep(*(on_device(one, block.ids_BT.device) for one in found)))
            rows, reached[going] = going, ends

    def _passed(self, sequence: Sequence, row: int) -> list[tuple[int, int]]:
        """Return the tokens after which copies of a row's state are taken in this forward, and the number of each copy."""
        if (reading := self._reading.get(sequence)) is None:
            return []
        marks = [mark for mark in reading.marks if self._first[row] < mark * self._block <= self._end[row]]
        numbers = [(mark * self._block, self._taken(reading.keys[mark - 1])) for mark in reversed(marks)]
        return [(end, number) for end, number in reversed(numbers) if number is not None]

    def _taken(self, key: bytes) -> int | None:
        """Return the number of a copy that is to be taken, or None if there is one of this key, or none can be given up for it."""
        if key in self._number or key in self._coming:
            return None
        if not self._free:
            waited = {one.keys[one.begins - 1] for one in self._reading.values() if one.begins}
            given_up = next((kept for kept in self._number if kept not in waited), None)
            if given_up is None:
                return None
            self._free.append(self._number.pop(given_up))
        self._coming[key] = self._free.pop()
        return self._coming[key]

    def _note(self, fed: Fed, layer: int, before: Parts, inputs: Inputs, after: After | None) -> None:
        now = before
        for step in self._steps:
            step = step.to(now[0].device)
            taken = tuple(part[step.rows_N[:, None], step.places_NP] for part in inputs)
            now = self._layers[layer].advance(tuple(part[step.within_N] for part in now), taken, step.counts_N)
            for part, copies in zip(now, self._copies[layer], strict=True):
                copies.index_copy_(0, step.numbers_N, part.to(copies.dtype))
        super()._note(fed, layer, before, inputs, after)

    def commit(self, batch: Batch, kept: Kept) -> None:
        """Take in the kept tokens, and keep the copies that were taken of them."""
        whole = bool(self._fed) and self._fed[0].inputs.keys() == self._layers.keys()
        super().commit(batch, kept)
        if whole:
            for key, number in reversed(self._coming.items()):  # the last of a prompt's is the one used last
                self._number[key] = number
            self._coming = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all states, those of copies included."""
        return super().nbytes + sum(copies.nbytes for _, copies in self._parts())
