"""The run, given to strategies at their start.

Tensor names carry their shape: B rows, T tokens fed per row, V vocabulary.
"""

from __future__ import annotations

import contextlib
from typing import cast

import attrs
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specframe.contracts.attention import Asked
from specframe.contracts.cache import DraftsBackend, KVBackend, KVStore, PrefixStore
from specframe.contracts.graphs import ModelGraphs
from specframe.contracts.model import ForwardOptions, Model
from specframe.contracts.roles import AcceptanceRule, Alignment, MakesLayout
from specframe.contracts.round import Sequence
from specframe.contracts.states import StateBackend, StateStore
from specframe.errors import literal
from specframe.model.cached import CachedModel
from specframe.model.open_stores import OpenStore, Stores, keeps_prefixes
from specframe.model.state_layers import open_states
from specframe.model.transformers_model import TransformersModel
from specframe.observe.watch import Watch
from specframe.value_checks import unwrap_guards


@attrs.define(eq=False)
class Run:
    """One run: its models, its rows, and how to open a cache with the alignment's layout.

    Strategies are handed it when it starts. What they may use of it is listed in docs/stability.md; the rest is the engine's.
    """

    runner: Model
    """The target without its cache."""
    alignment: Alignment
    rule: AcceptanceRule
    kv: KVBackend
    """The backend of caches that are opened without one of their own."""
    rows: int
    """Sequences that may be live at once."""
    capacity: int
    """Places per row: the longest sequence, and the draft tokens beyond its end."""
    watch: Watch
    """The run's observers."""
    seed: int = 0
    """The seed of every random choice."""
    steady: bool = False
    """Whether the policy offers "steady": it drafts in every round. Where it does not, a drafter may leave prompts unread until a
    draft is asked for."""
    draft_model: PreTrainedModel | None = None
    """The draft language model, for drafters that use one."""
    target_tokenizer: PreTrainedTokenizerBase | None = None
    draft_tokenizer: PreTrainedTokenizerBase | None = None
    attention: Asked = ()
    """The attention backend, or those that "auto" chooses from, see :mod:`specframe.model.attention.choice`."""
    graphs: str = "off"
    """Whether forwards are captured as CUDA graphs: "on", "off", or "auto": where there is CUDA."""
    layers: str = "eager"
    """How decoder layers are run: "eager", "traced", "compiled", or "auto": traced and compiled as soon as that pays."""
    stores: Stores | None = None
    """The stores that earlier runs have left open, or None if all are opened for this one alone."""
    target: CachedModel = attrs.field(init=False)
    """The target with its cache."""
    caches: list[CachedModel] = attrs.Factory(list)
    """The models with a cache of their own, which are counted, and released when the run ends."""
    _sharing: list[CachedModel] = attrs.field(factory=list, init=False)
    _stores: dict[int, OpenStore] = attrs.field(factory=dict, init=False)
    """The store of each cache."""
    _reserved: dict[int, tuple[Sequence, int]] = attrs.field(factory=dict, init=False)
    """The sequences that all caches have made room for, and the tokens that each begins with."""

    def __attrs_post_init__(self) -> None:
        self.target = self.open_cache(self.runner)

    def open_cache(
        self,
        model: Model | PreTrainedModel,
        *,
        layout: MakesLayout | None = None,
        kv: KVBackend | None = None,
        capacity: int | None = None,
        share: CachedModel | None = None,
        ahead: int = 0,
    ) -> CachedModel:
        """Return a model with a KV cache, which the run counts, and releases at its end.

        Args:
            model: the draft model, of transformers, or an object that runs one. What a drafter feeds by itself may leave
                :meth:`specframe.contracts.model.Model.forward` undone.
            layout: makes the cache's layout, in place of the alignment. Layers are not compiled there, and an attention backend
                asked for by name is not taken.
            kv: stores its keys and values, in place of the run's backend.
            capacity: slots per row, if they are not as many as the run's.
            share: the :class:`CachedModel` whose cache it uses, if it has none of its own. The model's layers are the first
                layers of that one. What it feeds beyond a row's own tokens has to be forgotten, by :meth:`CachedModel.commit`,
                before the other feeds.
            ahead: how many tokens after a slot's own one the model's keys depend on, for stores that keep what rows begin with, see
                :attr:`specframe.contracts.cache.PrefixStore.ahead`.
        """
        if isinstance(model, PreTrainedModel):
            model = (self.stores or Stores()).runner(model)
        elif not any(hasattr(owner, "kv_shapes") for owner in (type(model), model)):
            raise TypeError(f"run.open_cache: expected a model (run.draft_model if one is named), got {literal(model)}")
        spread = any(shape.device is not None for shape in model.kv_shapes)
        recorded = "off" if spread else self.graphs
        how = ForwardOptions(self.attention, self.layers)
        if share is not None:
            shared = self._stores.get(id(unwrap_guards(share)))
            graphs = shared.captured(model, how, recorded) if shared else None
            self._sharing.append(unwrap_guards(share).shared(model, graphs.how if graphs else how, graphs))
            return self._sharing[-1]
        backend, slots = self._backend(model, kv or self.kv), self.capacity if capacity is None else capacity
        opened = self._opened(model, backend, slots, layout is None)
        how = attrs.evolve(how, states=opened.states, direct=hasattr(type(opened.store), "places"))
        if layout is not None:
            how = ForwardOptions(self.attention if isinstance(self.attention, tuple) else ())
        if "prefix" in backend.offers:
            prefixes = cast(PrefixStore, opened.store)
            prefixes.ahead, prefixes.apart = ahead, model.by_rows.apart if model.by_rows else None
        graphs = opened.captured(model, how, recorded)
        cached = self._cached(model, opened.store, layout, backend, slots, graphs.how if graphs else how, graphs)
        cached.keeps_states = keeps_prefixes(backend)
        self.caches.append(cached)
        self._stores[id(cached)] = opened
        for sequence, tokens in self._reserved.values():
            cached.reserve(sequence, tokens)
        return cached

    def _backend(self, model: Model, own: KVBackend) -> KVBackend:
        """Return the backend of a model's cache, which the run's may decide for drafts."""
        if model.role == "target" or "drafts" not in self.kv.offers:
            return own
        return cast(DraftsBackend, self.kv).of_drafts(own)

    def _opened(self, model: Model, kv: KVBackend, slots: int, states: bool) -> OpenStore:
        """Return a store for a model: one that an earlier run has left, or a new one; ``states``: with those of its layers."""
        if self.stores and (left := self.stores.take(model, kv, self.rows, slots)):
            return left
        store = kv.open(model.kv_shapes, self.rows, slots, model.device)
        layers = model.state_layers if states else {}
        kept: StateStore | None = None
        if layers and "states" in kv.offers:
            kept = cast(StateBackend, kv).open_states(layers, self.rows, model.device)
        elif layers:
            kept = open_states(layers, self.rows, model.device)
        return OpenStore(unwrap_guards(model), unwrap_guards(kv), self.rows, slots, store, kept)

    def close_cache(self, cached: CachedModel) -> None:
        """Release a cache before the run ends."""
        if (rounds := self.target.rounds) is not None:
            rounds.clear()  # some may read the cache
        self.caches.remove(unwrap_guards(cached))
        del self._stores[id(unwrap_guards(cached))]
        unwrap_guards(cached).release()

    def _cached(
        self,
        model: Model,
        store: KVStore,
        own: MakesLayout | None,
        kv: KVBackend,
        slots: int,
        how: ForwardOptions,
        graphs: ModelGraphs | None,
    ) -> CachedModel:
        """Return a model on a store of a backend with ``slots`` slots per row; a run that checks puts its checks around both.

        ``own`` makes the layout, or the alignment does if it is None.
        """
        layout = (own or self.alignment.layout)(store, self.rows, slots)
        return CachedModel(model, store, layout, self.watch, how, graphs)

    def reserve(self, sequence: Sequence, tokens: int) -> int | None:
        """Make room in all caches for a sequence that begins with ``tokens`` tokens.

        Returns:
            How many of these tokens need not be fed, since all caches have them (the last is always fed), or None if a cache has no
            room; the others then keep nothing of the sequence.
        """
        self.forget_finished()
        least = tokens - 1
        with contextlib.ExitStack() as unless_all_have:
            unless_all_have.callback(self.forget, sequence)
            for cached in self.caches:
                if (count := cached.reserve(sequence, tokens)) is None:
                    return None
                least = min(least, count)
            least = self._begin_after(sequence, least)
            unless_all_have.pop_all()
        self._reserved[id(sequence)] = sequence, tokens
        return least

    def _begin_after(self, sequence: Sequence, tokens: int) -> int:
        """Return after how many tokens, ``tokens`` at most, all models can begin: where each has its states."""
        found = min((cached.begin_after(sequence, tokens) for cached in self.caches), default=tokens)
        return found if found == tokens else self._begin_after(sequence, found)

    def forget_finished(self) -> None:
        """Have the caches forget the sequences whose rows are no longer needed."""
        for sequence in [one for one, _ in self._reserved.values() if one.gone]:
            self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Have the caches forget a sequence, whose room is free then."""
        for cached in self.caches:
            cached.forget(sequence)
        self._reserved.pop(id(sequence), None)

    def release(self) -> None:
        """Let go of all caches, whatever one of them raises."""
        with contextlib.ExitStack() as released:
            for cached in self.all_caches:
                released.callback(cached.release)
            self.caches, self._sharing, self._reserved, self._stores = [], [], {}, {}

    def put_away(self) -> None:
        """Let go of all caches, and leave their stores open for a later run."""
        left = list(self._stores.values())
        self.release()
        for one in left:
            if one.graphs is not None:
                one.graphs.end()
        if self.stores:
            self.stores.keep(left)

    @property
    def current(self) -> bool:
        """Whether all models are known to be what they were when their caches were opened.

        Where something of prompts is kept they are not: their weights are compared when the run's stores are used again.
        """
        models = [cached.runner for cached in self.all_caches]
        changed = (isinstance(one, TransformersModel) and not one.serves(one.module) for one in models)
        return not any(changed) and not any(one.keeps_prompts for one in self._stores.values())

    @property
    def all_caches(self) -> list[CachedModel]:
        """The models with their caches, those included that use another model's."""
        return [*self.caches, *self._sharing]

    @property
    def new_shapes(self) -> int:
        """The times so far that a forward was slow on a device with graphs, as its shape was new, or was captured.

        A round in which the number grows says nothing of the time of its kind.
        """
        return sum(cached.new_shapes for cached in self.all_caches)

    @property
    def kv_bytes(self) -> int:
        """Bytes that all caches hold, those of states included."""
        stores = {id(one): one for cached in self.caches for one in (cached.store, cached.states) if one is not None}
        return sum(one.nbytes for one in stores.values())

    @property
    def state_bytes(self) -> int:
        """Bytes that the states of all caches hold, with the most that a round has kept of them until it was committed."""
        stores = {id(cached.states): cached.states for cached in self.caches if cached.states is not None}
        return sum(one.nbytes for one in stores.values())

    @property
    def forgetful(self) -> bool:
        """Whether a cache keeps states: a fork then has to begin before its parent decodes."""
        return any(cached.states is not None for cached in self.caches)
