"""Stores whose keys and values are in 8 bits, and the options of KV backends that have them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, cast

import torch

from specframe.contracts.cache import DenseView, KVBackend, KVShape, KVStore
from specframe.errors import OptionError, literal
from specframe.value_checks import unwrap_guards
from specframe_std.kv.quantiser import QUANTISERS, Quantiser

EXACT = "model"
"""The value of both options that has keys and values kept as the model makes them."""


class QuantisedStore:
    """A store of bytes that is written, and read, in numbers.

    All else is done, and held, by the store of bytes: what is moved, copied or cleared is bytes.

    Args:
        packed: the store of bytes, which hands out plain tensors.
        shapes: of the layers, in numbers.
        quantiser: between the two.
    """

    def __init__(self, packed: KVStore, shapes: list[KVShape], quantiser: Quantiser) -> None:
        self.packed, self._shapes, self._quantiser = packed, shapes, quantiser

    def __getattr__(self, name: str) -> Any:
        return getattr(self.packed, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("ahead", "apart"):  # a store with prefixes reads them, see PrefixStore
            setattr(self.packed, name, value)
        else:
            super().__setattr__(name, value)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> DenseView:
        """Write (B, H, T, D) keys and values, and return all slots attended to as they come back, (B, H, S, D)."""
        quantiser, shape = self._quantiser, self._shapes[layer]
        view = cast(DenseView, self.packed.write(layer, quantiser.pack(keys), quantiser.pack(values)))
        return DenseView(
            quantiser.unpack(view.keys, shape.key_size, keys.dtype),
            quantiser.unpack(view.values, shape.value_size, values.dtype),
        )


class Quantisable(ABC):
    """A KV backend with an option for the dtype of the target's keys and values, and one for those of drafts.

    A subclass calls its constructor last: the backend of drafts is a copy of what there is by then.
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()

    def __init__(self, dtype: str = EXACT, draft_dtype: str = EXACT) -> None:
        self._quantiser, of_drafts = quantiser("dtype", dtype), quantiser("draft_dtype", draft_dtype)
        self._of_drafts = of_drafts
        self._drafts = self._with(of_drafts)
        """The same for the caches of drafts."""
        if self._quantiser:
            self.offers |= {"rounded"}
        if self._quantiser or of_drafts:
            self.offers |= {"drafts"}

    def _with(self, quantiser: Quantiser | None) -> Quantisable:
        """Return this backend with another quantiser, for a cache of its own."""
        made = copy.copy(self)
        made._quantiser, made._of_drafts = quantiser, None
        made.offers = made.offers - {"drafts", "rounded"} | ({"rounded"} if quantiser else set())
        return made

    @abstractmethod
    def open_packed(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> KVStore:
        """Return a store of these shapes, which may be those of bytes."""

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> KVStore:
        """Return a store of keys and values."""
        if self._quantiser is None:
            return self.open_packed(shapes, rows, capacity, device)
        for place in {shape.device or device for shape in shapes}:
            self._quantiser.require(place)
        packed = self.open_packed([*map(self._quantiser.packed_shape, shapes)], rows, capacity, device)
        return cast(KVStore, QuantisedStore(packed, shapes, self._quantiser))

    def rounded(self, states: torch.Tensor) -> torch.Tensor:
        """Return keys or values (B, H, T, D) as forwards read them."""
        return states if self._quantiser is None else self._quantiser.round(states)

    def of_drafts(self, own: KVBackend) -> KVBackend:
        """Return the backend of a draft's cache.

        Args:
            own: the one that the drafter asks for: this one, or one of its own, which a third party's keeps as it is.
        """
        own = unwrap_guards(own)
        if own is self:
            return self._drafts
        return own._with(self._of_drafts) if isinstance(own, Quantisable) and self._of_drafts else own


def quantiser(name: str, value: Any) -> Quantiser | None:
    """Return the quantiser that an option names, or None if keys and values are kept as they are.

    Raises:
        OptionError: it names none.
    """
    if value not in (EXACT, *QUANTISERS):
        raise OptionError(f"{name}: expected {EXACT!r}, {' or '.join(map(repr, QUANTISERS))}, got {literal(value)}")
    return QUANTISERS.get(value)
