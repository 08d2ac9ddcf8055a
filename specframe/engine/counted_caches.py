"""KV backends and stores whose allocations are counted as those of caches."""

from __future__ import annotations

from typing import Any, cast

import torch

from specframe.contracts.cache import BoundedStore, DraftsBackend, KVBackend, KVShape, KVStore
from specframe.devices.allocations import Allocations
from specframe.engine.footprint import CACHE, VIEWS


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
        """The most bytes of all stores, and those that they take where they grow; none: as many as were counted."""

    def of_drafts(self, own: KVBackend) -> KVBackend:
        """Return the backend of a draft's cache, counted with this one, where it decides for drafts."""
        inner = own._kv if isinstance(own, CountedKV) else own
        made = CountedKV(cast(DraftsBackend, self._kv).of_drafts(inner), self._counter, self._beyond)
        made.most = self.most
        return cast(KVBackend, made)

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> KVStore:
        """Return a store."""
        with self._counter.part(CACHE):
            store = self._kv.open(shapes, rows, capacity, device)
        if "bounded" in self._kv.offers:
            of_store = cast(BoundedStore, store).most_bytes(rows, capacity - self._beyond)
            self.most[:] = [sum(both) for both in zip(self.most or (0, 0), of_store, strict=True)]
        return cast(KVStore, CountedStore(store, self._counter, "grow" in self._kv.offers))
