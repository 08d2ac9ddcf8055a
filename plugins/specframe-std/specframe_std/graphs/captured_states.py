"""The states of layers in a captured forward, which leaves what they take in of its tokens where another graph takes it in.

Tensor names carry their shape: B rows, T tokens fed per row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import attrs
import torch

from specframe_std.graphs.graph_cache import GraphCache, Outputs, Record
from specframe_std.states.row_states import Fed, RowStates

TENSORS = ("index_BT", "parents_BT", "sees_BTT", "prompt_BT")
"""What layers read of the tokens of a forward."""


def kind_of(fed: Fed) -> Hashable:
    """Return what a captured forward depends on of its tokens, beside numbers."""
    shapes = [None if (one := getattr(fed, name)) is None else tuple(one.shape) for name in TENSORS]
    return fed.own, *shapes


def copied(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a copy of a tensor, or None for None."""
    return None if tensor is None else tensor.clone()


@attrs.define(eq=False)
class CapturedStates:
    """The states of the forwards that one captured graph serves."""

    _states: RowStates
    _fed: Fed
    """The tokens, in memory that does not move, and what layers noted when the forward was called last."""
    _commits: GraphCache

    @classmethod
    def of(cls, states: RowStates, record: Record) -> CapturedStates:
        """Return them for forwards like the one that has begun; from now on rows' states stay where they are."""
        fed = states.begun
        assert fed is not None, "a forward that cannot be captured is not"
        states.fixed = True
        copies: dict[str, Any] = {name: copied(getattr(fed, name)) for name in TENSORS}
        return cls(states, attrs.evolve(fed, **copies), GraphCache(record, "commits of states"))

    def fill(self) -> None:
        """Take over the tokens of the forward that has begun."""
        for name in TENSORS:
            if (mine := getattr(self._fed, name)) is not None:
                mine.copy_(getattr(self._states.begun, name))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Have layers read these tokens inside the block, and note here what states take in of them."""
        self._fed = attrs.evolve(self._fed, asked=[], inputs={}, after={})
        with self._states.reading(self._fed):
            yield
            self._states.keep(self._fed)

    def give(self) -> None:
        """Have the forward that has begun be the one whose layers have noted this."""
        self._states.noted(self._fed, self.commit)

    def commit(self, kept_B: torch.Tensor, path_BT: torch.Tensor | None) -> bool:
        """Take in the tokens whose index is below ``kept_B``, along a path if they are a tree's; return whether a graph could."""

        def prepare() -> tuple[tuple[torch.Tensor, torch.Tensor | None], Callable[[], Outputs]]:
            buffers = kept_B.clone(), copied(path_BT)
            return buffers, lambda: (self._states.take_in([self._fed], *buffers),)

        key = (None if path_BT is None else path_BT.shape[1],)
        if (found := self._commits.take(key, prepare, eager=0)) is None:
            return False
        for buffer, given in zip(found.buffers, (kept_B, path_BT), strict=True):
            if buffer is not None:
                buffer.copy_(given)
        found.recording.replay(0)
        return True
