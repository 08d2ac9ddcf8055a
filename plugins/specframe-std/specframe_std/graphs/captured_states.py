"""The states of layers in captured forwards, which leave what they take in of their tokens where another graph takes it in.

A draft model's forwards go on from each other until all are committed together. What a state takes in, and the states that a
forward begins with that goes on from another, are in memory that is outside of graphs, and does not move.

Tensor names carry their shape: B rows, T tokens fed per row.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable, Iterator
from typing import Any

import attrs
import torch

from specframe.contracts.states import Parts
from specframe_std.graphs.graph_cache import GraphCache, Outputs, Record
from specframe_std.states.row_states import Fed, RowStates

TENSORS = ("index_BT", "parents_BT", "sees_BTT", "prompt_BT")
"""What layers read of the tokens of a forward."""


def copied(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a copy of a tensor, or None for None."""
    return None if tensor is None else tensor.clone()


class StatesGraphs:
    """What graphs have of the states of one store.

    Args:
        states: the states, which stay where they are in memory from now on.
        record: captures a function.
    """

    def __init__(self, states: RowStates, record: Record) -> None:
        self.states, self._commits = states, GraphCache(record, "commits of states")
        self._room: dict[Hashable, torch.Tensor] = {}
        """Memory that graphs share, as large as was asked for so far."""
        states.fixed, states.commit_captured = True, self.commit

    def kind(self) -> Hashable | None:
        """Return what a captured forward like the one that has begun depends on beside numbers, or None if none is captured."""
        if (fed := self.states.begun) is None:
            return None
        before = self.states.gone_on_from
        shapes = [None if (one := getattr(fed, name)) is None else tuple(one.shape) for name in TENSORS]
        return fed.own, before.captured if before else None, *shapes

    def begun(self) -> CapturedStates:
        """Return the states of forwards like the one that has begun."""
        fed, before = self.states.begun, self.states.gone_on_from
        assert fed is not None, "a forward that cannot be captured is not"
        copies: dict[str, Any] = {name: copied(getattr(fed, name)) for name in TENSORS}
        return CapturedStates(self, attrs.evolve(fed, **copies), before.captured if before else None)

    def kept(self, key: Hashable, parts: Parts) -> Parts:
        """Return copies of tensors in memory of their own, that of this key."""
        return tuple(self._kept((key, place), part) for place, part in enumerate(parts))

    def _kept(self, key: Hashable, part: torch.Tensor) -> torch.Tensor:
        room = self._room.get(key)
        if room is None or room.numel() < part.numel() or room.dtype != part.dtype:
            room = self._room[key] = part.new_empty(part.numel())
        return room[: part.numel()].view(part.shape).copy_(part)

    def commit(self, several: list[CapturedStates], kept_B: torch.Tensor, path_BT: torch.Tensor | None) -> bool:
        """Take in the tokens of forwards that went on from each other, those whose index is below ``kept_B``, along a path if they
        are a tree's; return whether a graph could."""

        made = list[Commit]()

        def prepare() -> tuple[Commit, Commit]:
            made.append(Commit(self.states, several, kept_B.clone(), copied(path_BT)))
            return made[0], made[0]

        key = (None if path_BT is None else path_BT.shape[1], *several)
        if (found := self._commits.take(key, prepare, eager=0)) is None:
            if made and made[0].error is not None:
                raise made[0].error
            return False
        found.buffers.fill(kept_B, path_BT)
        found.recording.replay(0)
        return True


@attrs.define(eq=False)
class Commit:
    """What one graph has states take in."""

    _states: RowStates
    _several: list[CapturedStates]
    _kept_B: torch.Tensor
    _path_BT: torch.Tensor | None
    error: RuntimeError | None = None
    """What it raised when it was called first: some layers' states may have taken tokens in, and others not."""

    def __call__(self) -> Outputs:
        """Take in the kept tokens."""
        try:
            return (self._states.take_in([one.fed for one in self._several], self._kept_B, self._path_BT),)
        except RuntimeError as error:
            self.error = error
            raise

    def fill(self, kept_B: torch.Tensor, path_BT: torch.Tensor | None) -> None:
        """Take over which tokens are kept now."""
        self._kept_B.copy_(kept_B)
        if self._path_BT is not None and path_BT is not None:
            self._path_BT.copy_(path_BT)


@attrs.define(eq=False)
class CapturedStates:
    """The states of the forwards that one captured graph serves."""

    _graphs: StatesGraphs
    fed: Fed
    """The tokens, in memory that does not move, and what layers noted when the forward was called last."""
    _before: CapturedStates | None
    """Those of the graph whose forward it goes on from, or None if it begins with rows' states."""
    _ahead: dict[int, Parts] = attrs.Factory(dict)
    """The states that it begins with, by layer, if not with rows' own."""

    @property
    def _place(self) -> int:
        """The number of forwards before it since rows were committed."""
        return 0 if self._before is None else self._before._place + 1

    def fill(self) -> None:
        """Take over the tokens of the forward that has begun."""
        for name in TENSORS:
            if (mine := getattr(self.fed, name)) is not None:
                mine.copy_(getattr(self._graphs.states.begun, name))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Have layers read these tokens inside the block, and note here what states take in of them."""
        before = None if self._before is None else functools.partial(self._go_on, self._before)
        fed = attrs.evolve(self.fed, asked=[], inputs={}, after={}, before=before)
        with self._graphs.states.reading(fed):
            yield
        for number, inputs in fed.inputs.items():
            fed.inputs[number] = self._graphs.kept(("inputs", self._place, number), inputs)
            if number in fed.after:
                fed.after[number] = functools.partial(self._after, number)
        self.fed = fed  # last: of a call that fails nothing is noted

    def _go_on(self, before: CapturedStates, number: int) -> Parts:
        """Return the states that a layer begins with, after the forward before, whose own stay: it may be called again."""
        self._ahead[number] = self._graphs.kept(("ahead", self._place % 2, number), before._after(number))
        return self._ahead[number]

    def _after(self, number: int) -> Parts:
        """Return a layer's states after all tokens."""
        states = self._graphs.states
        begins = states.now(number) if self._before is None else self._ahead[number]
        return states.advanced(number, begins, self.fed.inputs[number])

    def give(self) -> None:
        """Have the forward that has begun be the one whose layers have noted this."""
        self._graphs.states.noted(self.fed, self)
