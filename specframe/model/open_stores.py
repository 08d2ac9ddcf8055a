"""Stores that stay open from one run to the next, and the captured graphs that read and write their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import attrs
from transformers import PreTrainedModel

from specframe.contracts.cache import KVBackend, KVShape, KVStore, PooledStore
from specframe.contracts.model import ForwardOptions, Model
from specframe.contracts.states import PrefixStates, StateStore
from specframe.devices.kinds import CapturedGraph
from specframe.model.captured_graphs import CapturedForward, Forward, GraphCache
from specframe.model.runner import ModelRunner
from specframe.model.twin import ModelState, all_equal, settings
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
    graphs: StoreGraphs = attrs.field(
        init=False, default=attrs.Factory(lambda self: StoreGraphs("any-row" in self.kv.offers), takes_self=True)
    )
    """Forwards that are captured over this store."""
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


@attrs.define(eq=False)
class ModelGraphs:
    """The forwards of one model that are captured over one store, those of runs before included."""

    _model: Model
    how: ForwardOptions
    _record: Callable[..., CapturedGraph]
    _any_row: bool = False
    """Whether the store offers "any-row"."""
    rounds: GraphCache = attrs.field(init=False)
    """Rounds that are captured whole: of one run, whose rows of tokens they read and write."""
    _settings: list[Any] = attrs.field(init=False)
    _forward: CapturedForward | None = attrs.field(default=None, init=False)
    _before: int = attrs.field(default=0, init=False)
    """The new shapes of runs before."""

    def __attrs_post_init__(self) -> None:
        self.rounds, self._settings = GraphCache(self._record, "whole rounds"), settings(self._model.module)

    def suits(self, model: Model, how: ForwardOptions) -> bool:
        """Return whether these are of a model as it is now, whose forwards are run so."""
        if unwrap_guards(self._model) is not unwrap_guards(model) or asked(self.how) != asked(how):
            return False
        return self._settings == settings(model.module)

    def begin(self, forward: Forward, store: KVStore, slots: int) -> CapturedForward:
        """Return the forwards of a run that feeds the model so."""
        pack = self._model.by_lengths(self.how)
        if self._forward is None:
            leaves_out = self._model.leaves_out_padding
            self._forward = CapturedForward(forward, store.rows, slots, self._record, pack, leaves_out, self._any_row)
        self._forward.forward = forward
        self._before = self._new
        return self._forward

    @property
    def new_shapes(self) -> int:
        """The times in this run that a forward took longer than others of its shape: it was new, or was captured."""
        return self._new - self._before

    @property
    def _new(self) -> int:
        return self.rounds.new + (self._forward.graphs.new if self._forward else 0)


@attrs.define(eq=False)
class StoreGraphs:
    """What is captured over one store: for each model that is fed through it in this run, and those of the run before."""

    _any_row: bool = False
    """Whether the store offers "any-row"."""
    _now: list[ModelGraphs] = attrs.field(factory=list, init=False)
    _before: list[ModelGraphs] = attrs.field(factory=list, init=False)

    def of(self, model: Model, how: ForwardOptions, record: Callable[..., CapturedGraph]) -> ModelGraphs:
        """Return the captured graphs of a model that is fed through the store now: those of the run before if it had the same."""
        found = next((one for one in self._before if one.suits(model, how)), None)
        if found is None:
            found = ModelGraphs(model, how, record, self._any_row)
        else:
            self._before.remove(found)
        self._now.append(found)
        return found

    def end(self) -> None:
        """Keep this run's for the next one, in place of all others."""
        self._now, self._before = [], self._now
        for one in self._before:
            one.rounds.clear()


def asked(how: ForwardOptions) -> tuple[Any, ...]:
    """Return what two ways of running forwards are compared by."""
    backends = how.attention if isinstance(how.attention, tuple) else (how.attention,)
    return (*map(unwrap_guards, backends), how.layers)
