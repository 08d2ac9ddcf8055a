"""The states of a model's layers, kept per row and committed by replay.

A row has one state per layer, that after its committed tokens, and the inputs of the tokens fed since. A forward goes on from
there into tensors of its own. On commit the state takes in the inputs of the accepted tokens, for all rows at once: nothing of
the model is run twice, and nothing has to be undone. A state for each of K + 1 tokens would take far more memory.

Tensor names carry their shape: B rows of the batch, R all rows, T tokens of a block, P tokens fed since rows were committed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch, Kept, Sequence
from specframe.contracts.states import After, Inputs, LayerState, Parts, StateLayer
from specframe.devices.kinds import on_device
from specframe.errors import ContractError
from specframe.model.state_layers import call_kind
from specframe.row_map import Moves, RowMap

LONG = 64
"""A block of more of a row's own tokens is a prefill chunk: strategies feed fewer of them again. So is a block of several tokens
that says how many each row has."""

PADDING = -1
"""The index of a place of a block that holds no token, or one that the row's state has taken in before."""

UNKNOWN = -1
"""The number of tokens of a row's state where it is known on the device alone."""


@attrs.define(eq=False)
class Fed:
    """The tokens of one forward that are not committed yet."""

    index_BT: torch.Tensor
    parents_BT: torch.Tensor | None
    sees_BTT: torch.Tensor | None
    prompt_BT: torch.Tensor | None
    own: int
    """Number of first places that hold rows' own tokens; in a tree the nodes follow them."""
    padded: bool = True
    """Whether a place may hold no token."""
    apart: bool = False
    """Whether such a place may come after tokens that a row's state has taken in."""
    whole: bool = False
    """Whether all of it will be committed, so that no inputs are kept: a prefill chunk, whose inputs would take gigabytes."""
    asked: list[int] = attrs.Factory(list)
    """The layers that have been given their states."""
    inputs: dict[int, Inputs] = attrs.Factory(dict)
    """What each layer's state takes in of them."""
    after: dict[int, After] = attrs.Factory(dict)
    """Each layer's states after the last of them, or what computes them; the next forward takes them over."""
    before: Callable[[int], Parts] | None = None
    """Returns a layer's states before them, or None for those that the rows have, or had after the forward before."""
    captured: Any = None
    """What has captured the forward, or None."""

    def states_after(self, layer: int) -> Parts:
        """Return a layer's states after the last of them, which are computed once."""
        after = self.after[layer]
        if callable(after):
            after = self.after[layer] = after()
        return after


class RowStates:
    """One state per row and module, and the inputs of the tokens fed since it was committed.

    Args:
        layers: the modules with states, as :func:`specframe.model.state_layers.state_layers` numbers them.
        rows: R, the sequences that there is room for.
        device: where states are, if their shape names no other.
    """

    def __init__(self, layers: Mapping[int, StateLayer], rows: int, device: torch.device) -> None:
        self._layers, self._device = layers, device
        self._furnish(rows)
        self._starts: dict[int, tuple[Sequence, list[torch.Tensor]]] = {}
        """Copies of the states that forks start with, by their parent."""
        self._fed: list[Fed] = []
        self._arranged: list[Sequence] = []
        self._most, self._uncommitted = -1, 0
        self._prompts: tuple[list[int], torch.Tensor] = [], torch.zeros(0)
        self._rows, self._first, self._end = slice(0, 0), np.zeros(0), np.zeros(0)
        self.fixed = False
        """Whether rows' states stay where they are in memory, as captured graphs read and write them there."""
        self.commit_captured: Callable[[list[Any], torch.Tensor, torch.Tensor | None], bool] = lambda *_: False
        """Takes in tokens of captured forwards by a graph, and returns whether it could."""

    def _furnish(self, rows: int) -> None:
        """Allocate the states of ``rows`` rows."""
        self._row_map, self._count = RowMap(rows, anywhere=True), np.zeros(rows, dtype=np.int64)
        self._held = self._zeros(rows)

    def _zeros(self, count: int) -> dict[int, Parts]:
        """Return ``count`` states of each layer, all zeros."""
        return {
            number: tuple(
                torch.zeros(count, *size, dtype=dtype, device=layer.shape.device or self._device)
                for size, dtype in zip(layer.shape.sizes, layer.shape.dtypes, strict=True)
            )
            for number, layer in self._layers.items()
        }

    @property
    def _tensors(self) -> list[torch.Tensor]:
        return [part for parts in self._held.values() for part in parts]

    def arrange(self, sequences: list[Sequence]) -> None:
        """Bring the rows of ``sequences`` side by side."""
        self._forget_discarded()
        self._arranged = sequences
        moves = self._row_map.arrange(sequences)
        self._rows = slice(self._row_map.first, self._row_map.first + len(sequences))
        if not (moves.sources or moves.fresh):
            return
        self._require_committed("rows change their places")
        moves.apply(*self._tensors)
        moves.apply_host(self._count)
        self._begin(moves, sequences)

    def _begin(self, moves: Moves, sequences: list[Sequence]) -> None:
        """Give rows that begin their first state: zeros, or a copy of the one at their parent's start."""
        self._count[moves.fresh], self._count[moves.forked] = 0, UNKNOWN
        if moves.fresh:
            for part in self._tensors:
                part.index_fill_(0, on_device(moves.fresh, part.device), 0)
        for row in moves.forked:
            parent = sequences[row - self._rows.start].parent
            for part, start in zip(self._tensors, self._starts[id(parent)][1], strict=True):
                part[row] = start
        self._starts = {key: kept for key, kept in self._starts.items() if kept[0].forks}

    def remember(self, batch: Batch) -> None:
        """Keep a copy of the states of sequences that have forks to come."""
        for row, sequence in enumerate(batch.sequences, self._rows.start):
            if sequence.forks:
                self._starts[id(sequence)] = sequence, [part[row].clone() for part in self._tensors]

    def begin(self, batch: Batch, block: Block) -> None:
        """Begin a forward of the batch's rows."""
        begins = np.maximum(batch.lengths + block.start, 0)
        first = self._first_of(batch, block)
        if self._fed:
            goes_on = block.parents_BT is None and self._fed[-1].parents_BT is None
            if not goes_on or not np.array_equal(first, self._end):
                self._require_committed("a block begins that is no continuation of it")
        else:
            count = self._count[self._rows]
            if (wrong := np.flatnonzero((count != UNKNOWN) & (count != first))).size:
                row = wrong[0]
                raise ContractError(
                    f"a block begins after {first[row]} tokens of row {row}, whose state holds {count[row]}: expected a cache that "
                    "was committed at the tokens before the block"
                )
            self._first = first
        self._end = np.maximum(batch.lengths + block.end, first)
        index_BT = batch.lengths_B[:, None] + block.start + block.depth_BT()
        if apart := bool((first > begins).any()):
            index_BT = index_BT.masked_fill(index_BT < on_device(first, index_BT.device)[:, None], PADDING)
        prompt_BT = index_BT < self._prompts_B1(index_BT.device)
        own, padded = max(-block.start, 0), bool((first > batch.lengths + block.start).any())
        whole = block.end <= 0 and (block.width > LONG or (block.counts is not None and block.width > 1))
        self._fed.append(
            Fed(index_BT, block.parents_BT, block.sees_BTT, prompt_BT, own, padded, apart=apart, whole=whole)
        )

    def _first_of(self, batch: Batch, block: Block) -> np.ndarray:
        """Return the index of each row's first token in a block, or in a prefill chunk without one where its state ends."""
        if block.counts is None or block.end > 0:
            return np.maximum(batch.lengths + block.start, 0)
        first = np.maximum(batch.lengths + block.end - block.counts, 0)
        return np.where(block.counts > 0, first, np.maximum(self._count[self._rows], first))

    def feed(self, index_BT: torch.Tensor) -> None:
        """Begin a forward of the first rows: of tokens with these indices, of which the last is no part of a prompt."""
        self._rows = slice(0, len(index_BT))
        self._fed.append(Fed(index_BT, None, None, index_BT < index_BT[:, -1:], 0))

    def _prompts_B1(self, device: torch.device) -> torch.Tensor:
        """Return the lengths of the rows' prompts, which are copied to the device where rows have changed."""
        lengths = [len(sequence.request.prompt_ids) for sequence in self._arranged]
        if self._prompts[0] != lengths:
            self._prompts = lengths, on_device(lengths, device)[:, None]
        return self._prompts[1]

    def state(self, layer: int) -> LayerState:
        """Return the states of a layer for the forward that has begun."""
        fed = self._fed[-1]
        if fed.before is not None:
            before = fed.before(layer)
        else:
            before = self.now(layer) if len(self._fed) == 1 else self._go_on(self._fed[-2], layer)
        fed.asked.append(layer)

        note = functools.partial(self._note, fed, layer, before)
        return LayerState(before, fed.index_BT >= 0, fed.parents_BT, fed.sees_BTT, fed.prompt_BT, note, fed.apart)

    @property
    def begun(self) -> Fed | None:
        """The forward that has begun, or None where none is captured like it: it has padding or a prompt, or goes on from one that
        was not captured."""
        fed, before = self._fed[-1], self.gone_on_from
        alone = len(self._fed) == 1 or (before is not None and before.captured is not None)
        return fed if alone and not (fed.whole or fed.padded or self._rows.start) else None

    @property
    def gone_on_from(self) -> Fed | None:
        """The forward that the one which has begun goes on from, or None if rows' states are what it begins with."""
        return self._fed[-2] if len(self._fed) > 1 else None

    @contextlib.contextmanager
    def reading(self, fed: Fed) -> Iterator[None]:
        """Have layers read other tokens in place of the forward's inside the block."""
        own, self._fed[-1] = self._fed[-1], fed
        try:
            yield
        finally:
            self._fed[-1] = own

    def noted(self, fed: Fed, captured: object) -> None:
        """Have the forward that has begun be one whose layers have noted what those of another did, which a graph has captured."""
        self._fed[-1] = attrs.evolve(
            self._fed[-1], asked=[*fed.asked], inputs={**fed.inputs}, after={**fed.after}, captured=captured
        )

    def advanced(self, number: int, before: Parts, inputs: Inputs) -> Parts:
        """Return a layer's states after all tokens of a block without padding."""
        return advanced(self._layers[number], before, inputs)

    def _go_on(self, fed: Fed, layer: int) -> Parts:
        """Return a layer's states after a forward, for the one after it, and let go of them: a chain of forwards keeps one."""
        self._require_noted(fed, layer)
        states = fed.states_after(layer)
        del fed.after[layer]
        return states

    def _note(self, fed: Fed, layer: int, before: Parts, inputs: Inputs, after: After | None) -> None:
        """Take what a layer has noted in a forward, whose rows had these states before it."""
        fed.inputs[layer] = () if fed.whole else inputs
        if callable(after):
            after = functools.partial(call_kind, str(self._layers[layer]), "forward", after)
        if after is not None:
            fed.after[layer] = after
        if fed.whole:
            fed.states_after(layer)  # what computes them holds the tokens of the whole chunk

    def now(self, layer: int) -> Parts:
        """Return a layer's states of the batch, as views."""
        return tuple(part[self._rows] for part in self._held[layer])

    def forget(self) -> None:
        """Let go of what was fed: what a layer has noted refers to its forward, and would stay with it."""
        for fed in self._fed:
            fed.inputs.clear()
            fed.after.clear()
        self._fed.clear()

    def _forget_discarded(self) -> None:
        """Let go of what was fed to rows that have all ended since: their round is discarded."""
        if self._fed and all(sequence.gone for sequence in self._arranged):
            self.forget()

    def commit(self, batch: Batch, kept: Kept) -> None:
        """Take in the accepted tokens."""
        self._forget_discarded()  # before the first batch of others is arranged
        if not self._fed:
            return
        for fed in self._fed:
            for number in fed.asked:
                self._require_noted(fed, number, taken_over=fed is not self._fed[-1])
        self._measure()
        if isinstance(kept.beyond, torch.Tensor):
            self._advance(kept.device(batch), kept.path_BT)
            self._count[self._rows] = UNKNOWN
        else:
            self._commit_to(batch, kept)
        self.forget()

    def _commit_to(self, batch: Batch, kept: Kept) -> None:
        """Take in the accepted tokens where their number is known on the host: without a replay where all or none are."""
        accepted = kept.host(batch)
        if (short := np.flatnonzero(accepted < self._first)).size:
            row = short[0]
            raise ContractError(
                f"row {row} is to keep {accepted[row]} tokens, and its state holds {self._first[row]} already: expected at least "
                "as many, since a state forgets nothing"
            )
        captured = [fed.captured for fed in self._fed]
        if None in captured and self._fed[-1].parents_BT is None and (accepted >= self._end).all():
            self._hold({number: self._fed[-1].states_after(number) for number in self._fed[-1].after})
        elif (accepted > self._first).any():
            self._advance(kept.device(batch), kept.path_BT)
        self._count[self._rows] = np.minimum(accepted, self._end)

    def _hold(self, after: Mapping[int, Parts]) -> None:
        """Have rows hold these states of layers."""
        for number, parts in after.items():
            self._held[number] = tuple(map(self._held_by, self._held[number], parts))

    def _held_by(self, held: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Return what holds the states of all rows: those that were computed, where they are of all, are held themselves."""
        alike = (part.shape, part.dtype) == (held.shape, held.dtype) and part.is_contiguous()
        if alike and not part.storage_offset() and not self.fixed:
            return part
        held[self._rows].copy_(part)
        return held

    def _advance(self, kept_B: torch.Tensor, path_BT: torch.Tensor | None) -> None:
        """Take in the tokens whose index is below ``kept_B``, along a path if the last block was a tree."""
        if any(fed.whole for fed in self._fed):
            raise ContractError("a prefill chunk was fed, and a part of it is to be kept: expected all of its tokens")
        captured = [fed.captured for fed in self._fed]
        if None in captured or not self.commit_captured(captured, kept_B, path_BT):
            self.take_in(self._fed, kept_B, path_BT)

    def take_in(self, several: list[Fed], kept_B: torch.Tensor, path_BT: torch.Tensor | None) -> torch.Tensor:
        """Advance all states by the same tokens of these forwards; return how many each row takes in, (B,)."""
        places_BP, index_BP = chain(several, path_BT)
        counts_B = ((index_BP >= 0) & (index_BP < kept_B[:, None])).sum(1)
        if several[0].padded:
            padding_B1 = (index_BP < 0).sum(1, keepdim=True)
            shifted_BP = torch.arange(index_BP.shape[1], device=index_BP.device) + padding_B1
            places_BP = places_BP.gather(1, shifted_BP.clamp(max=index_BP.shape[1] - 1))
        in_place = not several[0].padded and several[0].parents_BT is None
        for number in several[0].inputs:  # a model that shares the states has the first layers only
            inputs = several[0].inputs[number]
            if len(several) > 1:
                given = [fed.inputs[number] for fed in several]
                if len({len(one) for one in given}) > 1:
                    raise ContractError(
                        f"{self._layers[number]}: expected commit() after a block as long as the one that was fed"
                    )
                inputs = tuple(torch.cat(parts, dim=1) for parts in zip(*given, strict=True))
            if not in_place:
                rows_B1 = torch.arange(len(places_BP), device=places_BP.device)[:, None]
                inputs = tuple(part[rows_B1.to(part.device), places_BP.to(part.device)] for part in inputs)
            now = self.now(number)
            self._hold({number: self._layers[number].advance(now, inputs, counts_B.to(now[0].device))})
        return counts_B

    def _require_noted(self, fed: Fed, number: int, taken_over: bool = False) -> None:
        """Raise unless a layer has noted what the rest needs; ``taken_over``: the states after the block are gone."""
        if number not in fed.inputs or not (taken_over or fed.parents_BT is not None or number in fed.after):
            raise ContractError(
                f"{self._layers[number]}: forward() must note what the state of layer {self._layers[number].number} takes in, "
                "and the state after it where the block is a chain"
            )

    def _require_committed(self, when: str) -> None:
        if self._fed:
            raise ContractError(
                f"a cache with states was fed and not committed when {when}: expected commit() once it is known what is accepted"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of all states and of the most that was fed and not committed, without the states that forks start with."""
        return sum(part.nbytes for part in self._tensors) + self._uncommitted

    def _measure(self) -> None:
        """Count the bytes of what was fed, where it was more than before, with the states after it as if they were computed."""
        tokens = sum(fed.index_BT.numel() for fed in self._fed if not fed.whole)
        if tokens > self._most:
            kept = [
                part
                for fed in self._fed
                for parts in (*fed.inputs.values(), *map(self.now, fed.after))
                for part in parts
            ]
            self._most, self._uncommitted = tokens, max(self._uncommitted, sum(part.nbytes for part in kept))


def advanced(layer: StateLayer, before: Parts, inputs: Inputs) -> Parts:
    """Return a layer's states after all tokens of a block without padding."""
    rows, width = inputs[0].shape[:2]
    return layer.advance(before, inputs, inputs[0].new_full((rows,), width, dtype=torch.long))


def chain(several: list[Fed], path_BT: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places and the indices of the tokens that may be accepted, one after the other, (B, P) each."""
    fed = several[0]
    rows, device = len(fed.index_BT), fed.index_BT.device
    if fed.parents_BT is None:
        index_BP = torch.cat([one.index_BT for one in several], dim=1)
        return torch.arange(index_BP.shape[1], device=device).expand(rows, -1), index_BP
    places_BP = torch.arange(fed.own, device=device).expand(rows, -1)
    if path_BT is not None:
        places_BP = torch.cat([places_BP, path_BT + fed.own], dim=1)
    return places_BP, fed.index_BT[:, :1] + torch.arange(places_BP.shape[1], device=device)
