"""Stores that stay open from one run to the next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import attrs
from transformers import PreTrainedModel

from specframe.contracts.cache import KVBackend, KVShape, KVStore, PooledStore
from specframe.contracts.graphs import ModelGraphs, StoreGraphs
from specframe.contracts.model import ForwardOptions, Model
from specframe.contracts.states import PrefixStates, StateStore
from specframe.devices import kinds
from specframe.model.runner import ModelRunner
from specframe.model.twin import ModelState, all_equal
from specframe.plugins.registry import registry
from specframe.value_checks import unwrap_guards


@attrs.define(eq=False)
class OpenStore:
    """The keys, values and states of one model, and what they were opened for."""

    model: Model
    kv: KVBackend
    rows: int
    capacity: int
    """Slots per row."""
    store: KVStore
    states: StateStore | None = None
    graphs: StoreGraphs | None = attrs.field(default=None, init=False)
    """What is captured over this store, or None if nothing was to be."""
    _shapes: list[KVShape] = attrs.field(
        init=False, default=attrs.Factory(lambda self: self.model.kv_shapes, takes_self=True)
    )
    model_state: ModelState | None = attrs.field()
    """The model as it was when this was opened, or None if nothing of prompts is kept: a run then reads what it has written."""

    @model_state.default
    def _as_it_is(self) -> ModelState | None:
        return ModelState.of(self.model.module) if {"prefix", "paged"} & self.kv.offers else None

    def suits(self, model: Model, kv: KVBackend) -> bool:
        """Return whether this was opened for a model as it is now, by this backend."""
        same = self.model is unwrap_guards(model) and self.kv is unwrap_guards(kv)
        return same and self._shapes == model.kv_shapes

    def captured(self, model: Model, how: ForwardOptions, graphs: str) -> ModelGraphs | None:
        """Return what is captured of a model that is fed through the store now, or None if nothing is to be.

        ``graphs`` is "on", "off", or "auto": where the device has graphs.
        """
        wanted = graphs == "on" or (graphs == "auto" and kinds.of(model.device).recording is not None)
        if not wanted or self.store.slots is None:
            return None
        if self.graphs is None:
            self.graphs = registry().entry("option", "graphs").factory("any-row" in self.kv.offers)
        return self.graphs.of(model, how)

    @property
    def keeps_prompts(self) -> bool:
        """Whether something of prompts may be kept for later ones."""
        return self.model_state is not None

    def sized(self, rows: int, capacity: int) -> OpenStore:
        """Return this one for a run of another size: a store whose rows share memory serves any."""
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
        self._runners: list[ModelRunner] = []

    def runner(self, model: PreTrainedModel) -> ModelRunner:
        """Return what feeds a draft model of transformers: one that has tried it in an earlier run, while the model has not
        changed."""
        found = next((one for one in self._runners if one.serves(model)), None) or ModelRunner(model, "draft")
        self._runners = [found, *(one for one in self._runners if one.module is not model)]
        return found

    def room(self, model: Model, kv: KVBackend, rows: int, capacity: int, exact: bool = False) -> tuple[int, int]:
        """Return the rows and the capacity that a run is to open caches with: those that are kept, if they suffice.

        Args:
            rows, capacity: what the run needs at least.
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
        if target is not None and target.any_size:
            return rows, capacity
        if target is None or target.rows < rows or target.capacity < capacity:
            self.clear()
            return rows, capacity
        return target.rows, target.capacity

    def take(self, model: Model, kv: KVBackend, rows: int, capacity: int) -> OpenStore | None:
        """Take out the store that suits a model with these rows and slots, or None, and let go of all others of its role."""
        for one in [one for one in self._kept if one.model.role == model.role]:
            self._kept.remove(one)
            if one.suits(model, kv) and (one.any_size or (one.rows, one.capacity) == (rows, capacity)):
                return one.sized(rows, capacity)
        return None

    def keep(self, opened: Iterable[OpenStore]) -> None:
        """Keep the stores of a run that has ended, in place of all others."""
        self._kept = list(opened)
        self._runners = [one for one in self._runners if any(one is held.model for held in self._kept)]

    def forget_prompts(self) -> None:
        """Let go of the stores that may have kept something of prompts."""
        self._kept = [one for one in self._kept if not one.keeps_prompts]

    def clear(self) -> None:
        """Let go of all stores."""
        self._kept = []


def keeps_prefixes(kv: KVBackend) -> bool:
    """Return whether a backend keeps states of what rows begin with, in addition to keys and values."""
    return {"prefix", "states"} <= kv.offers
