"""KV backends and stores whose allocations are counted as those of caches."""

from __future__ import annotations

from typing import Any, cast

import torch

from specframe.contracts.cache import BoundedStore, DraftsBackend, KVBackend, KVShape, KVStore
from specframe.contracts.states import StateBackend, StateStore
from specframe_memory.allocations import Allocations
from specframe_memory.footprint import CACHE, VIEWS


class CountedStore:
    """A store whose allocations are counted as the cache's, but for those of a write: they are what attention reads."""

    def __init__(self, store: KVStore, counter: Allocations, grows: bool) -> None:
        self._store, self._counter = store, counter
        self._written = CACHE if grows else VIEWS

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        if not callable(member):
            return member

        def counted(*given: Any, **named: Any) -> Any:
            with self._counter.part(self._written if name == "write" else CACHE):
                return member(*given, **named)

        return counted


class CountedKV:
    """A KV backend whose stores are counted.

    Args:
        kv: the backend.
        counter: counts.
        beyond: slots of a row that are there for the count alone.
    """

    def __init__(self, kv: KVBackend, counter: Allocations, beyond: int) -> None:
        self._kv, self._counter, self._beyond = kv, counter, beyond
        self.needs, self.offers = kv.needs, kv.offers
        self.most: list[int] = []
        """The most bytes of all stores, and those that they take where they grow, or nothing for as many as were counted."""

    def of_drafts(self, own: KVBackend) -> KVBackend:
        """Return the backend of a draft's cache, counted with this one, where it decides for drafts."""
        inner = own._kv if isinstance(own, CountedKV) else own
        return self.beside(cast(DraftsBackend, self._kv).of_drafts(inner))

    def beside(self, own: KVBackend) -> KVBackend:
        """Return the backend of another cache of the run, counted with this one."""
        made = CountedKV(own, self._counter, self._beyond)
        made.most = self.most
        return cast(KVBackend, made)

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> KVStore:
        """Return a store. Slots beyond those of the run are for rows that share memory."""
        own = capacity - self._beyond
        with self._counter.part(CACHE):
            store = self._kv.open(shapes, rows, capacity if "pooled" in self._kv.offers else own, device)
        if "bounded" in self._kv.offers or self.most:
            bounded = "bounded" in self._kv.offers
            of_store = cast(BoundedStore, store).most_bytes(rows, own) if bounded else (store.nbytes, 0)
            self.most[:] = [sum(both) for both in zip(self.most or (0, 0), of_store, strict=True)]
        return cast(KVStore, CountedStore(store, self._counter, "grow" in self._kv.offers))

    def open_states(self, *given: Any) -> StateStore:
        """Return the store of states of a backend that keeps them."""
        return cast(StateBackend, self._kv).open_states(*given)
