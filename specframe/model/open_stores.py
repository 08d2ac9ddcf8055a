"""Stores that stay open from one run to the next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import attrs

from specframe.contracts.cache import KVBackend, KVShape, KVStore, PooledStore
from specframe.contracts.model import Model
from specframe.contracts.states import PrefixStates, StateStore
from specframe.model.model_state import ModelState, all_equal
from specframe.model.store_graphs import StoreGraphs
from specframe.value_checks import unwrap_guards


@attrs.frozen(eq=False)
class OpenStore:
    """The keys, values and states of one model, and what they were opened for."""

    model: Model
    kv: KVBackend
    rows: int
    capacity: int
    """Slots per row."""
    store: KVStore
    states: StateStore | None = None
    graphs: StoreGraphs = attrs.field(init=False)
    """Forwards that are captured over this store."""
    _shapes: list[KVShape] = attrs.field(init=False)
    model_state: ModelState | None = attrs.field()
    """The model as it was when this was opened, or None if nothing of prompts is kept: a run then reads what it has written."""

    @graphs.default
    def _nothing_recorded(self) -> StoreGraphs:
        return StoreGraphs("any-row" in self.kv.offers)

    @_shapes.default
    def _of_the_model(self) -> list[KVShape]:
        return self.model.kv_shapes

    @model_state.default
    def _as_it_is(self) -> ModelState | None:
        return ModelState.of(self.model.module) if {"prefix", "paged"} & self.kv.offers else None

    def suits(self, model: Model, kv: KVBackend) -> bool:
        """Return whether this was opened for a model as it is now, by this backend."""
        same = self.model is unwrap_guards(model) and self.kv is unwrap_guards(kv)
        return same and self._shapes == model.kv_shapes

    @property
    def keeps_prompts(self) -> bool:
        """Whether something of prompts may be kept for later ones."""
        return self.model_state is not None

    def sized(self, rows: int, capacity: int) -> OpenStore:
        """Return this one for a run of so many rows and slots: a store whose rows share memory serves any."""
        if (rows, capacity) == (self.rows, self.capacity):
            return self
        cast(PooledStore, self.store).widen(rows, capacity)
        if self.states is not None:
            cast(PrefixStates, self.states).widen(rows)
        return attrs.evolve(self, rows=rows, capacity=capacity)

    @property
    def any_size(self) -> bool:
        """Whether runs of any size can have it: rows share its memory, and states, of which each row has its own, are of any."""
        return "pooled" in self.kv.offers and (self.states is None or keeps_prefixes(self.kv))


class Stores:
    """The stores of the last run, for the next one that they suit. A run takes them out: no two have the same.

    What a store has kept of prompts is right for the model as it was. Where a model was changed since, those of drafts go with it:
    a head's keys come of the target's hidden states.
    """

    def __init__(self) -> None:
        self._kept: list[OpenStore] = []
        self._group = False

    def room(
        self, model: Model, kv: KVBackend, rows: int, capacity: int, group: bool, exact: bool = False
    ) -> tuple[int, int]:
        """Return the rows and the capacity that a run is to open caches with: those that are kept, if they suffice.

        Args:
            model: the target.
            kv: its backend.
            rows, capacity: what the run needs at least.
            group: of rotary factors, see :meth:`specframe.contracts.model.Model.group`; keys of another mean nothing.
            exact: whether there is no memory for more rows or slots than the run needs.
        """
        before = [
            (one.model_state, ModelState.of(one.model.module)) for one in self._kept if one.model_state is not None
        ]
        if not all_equal(before):
            self.clear()
        target = next((one for one in self._kept if one.suits(model, kv)), None)
        if exact and target is not None and (target.rows, target.capacity) != (rows, capacity):
            target = None
        if target is not None and target.any_size and group == self._group:
            return rows, capacity
        if target is None or target.rows < rows or target.capacity < capacity or group != self._group:
            self.clear()
            return rows, capacity
        return target.rows, target.capacity

    def take(self, model: Model, kv: KVBackend, rows: int, capacity: int) -> OpenStore | None:
        """Take out what suits a model with so many rows and slots, or None if there is none, and what its role had is let go."""
        for one in [one for one in self._kept if one.model.role == model.role]:
            self._kept.remove(one)
            if one.suits(model, kv) and (one.any_size or (one.rows, one.capacity) == (rows, capacity)):
                return one.sized(rows, capacity)
        return None

    def keep(self, opened: Iterable[OpenStore], group: bool) -> None:
        """Keep the stores of a run that has ended, in place of all others."""
        self._kept, self._group = list(opened), group

    def forget_prompts(self) -> None:
        """Let go of the stores that may have kept something of prompts."""
        self._kept = [one for one in self._kept if not one.keeps_prompts]

    def clear(self) -> None:
        """Let go of all stores."""
        self._kept = []


def keeps_prefixes(kv: KVBackend) -> bool:
    """Return whether a backend keeps states of what rows begin with, beside keys and values."""
    return {"prefix", "states"} <= kv.offers
