"""Guards of alignments and their layouts, of KV backends and their stores, and of attention backends."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch

from specframe.contracts.attention import Attend, AttentionFacts
from specframe.contracts.cache import Dense, KVBackend, KVShape, KVStore, KVView, Paged, Placement, Window
from specframe.contracts.drafts import Block, Draft, Numbers, Transfer
from specframe.contracts.layout import Layout
from specframe.contracts.round import Batch, Kept, Sequence
from specframe.contracts.states import PrefixStates, StateStore
from specframe.engine.error_words import value_words
from specframe.engine.guards.base import STORES, Guard, GuardedPart, members_of, on_host, readable
from specframe.engine.guards.numbers import beyond, first_beyond, verdict_fault
from specframe.value_checks import Wrapper


class GuardedAlignment(Guard):
    """An alignment, guarded, as its layouts are."""

    kind = "alignment"

    def layout(self, store: KVStore, rows: int, capacity: int) -> Layout:
        """Return the alignment's layout, guarded."""
        layout = self._call("layout", store, rows, capacity)
        if lacking := [name for name in ("arrange", "place", "settle") if not callable(getattr(layout, name, None))]:
            asked = f"a layout with arrange, place and settle, {' and '.join(lacking)} among them"
            self._refuse("layout", asked, value_words(layout))
        return GuardedLayout(layout, self, store.slots)

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        """Return the transfer of the committed verdict after checking it."""
        stands = self._with_batch("commit", batch, draft, transfer)
        if not (stands is transfer or (isinstance(stands, Transfer) and stands.committed)):
            self._refuse(
                "commit",
                "the specframe.contracts.drafts.Transfer it was given, or another verdict's",
                value_words(stands),
            )
        if stands.committed:
            self._verdict("commit", stands.verdict, batch, draft)
            numbers = stands.host  # whoever changes a verdict has asked for it anyway
            if readable(stands.verdict.tokens_BT):
                self._check(stands, numbers, on_host(draft.parents_BN))
        return stands

    def check_numbers(self, transfer: Transfer, numbers: Numbers) -> None:
        """Check the numbers of a verdict of the alignment's own, which have come from a device."""
        if transfer.committed:
            self._check(transfer, numbers, numbers.parents)

    def _check(self, transfer: Transfer, numbers: Numbers, parents: np.ndarray | None) -> None:
        accepted, tokens, path = numbers.accepted, numbers.tokens, numbers.path
        self._sound("commit", verdict_fault(transfer.draft, accepted, tokens, path, parents, self._vocabulary))


class GuardedLayout(Wrapper):
    """Guard of a layout; errors name the layout's alignment.

    Args:
        inner: the layout.
        alignment: what has made it.
        slots: slots per row of the store that it places tokens in, or None if the store may have more later.
    """

    def __init__(self, inner: Any, alignment: Guard, slots: int | None) -> None:
        super().__init__(inner)
        self._alignment, self._most = alignment, 2**62 if slots is None else slots - 1

    def arrange(self, batch: Batch) -> None:
        """Let the layout follow the batch."""
        self._alignment._watched("layout.arrange", self.__wrapped__.arrange, batch)

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return the layout's placement after checking it."""
        rows, width, checked = batch.lengths_B.shape[0], block.width, None
        placed = self._alignment._watched("layout.place", self.__wrapped__.place, batch, block)
        if not isinstance(placed, Placement):
            self._alignment._refuse("layout.place", "a specframe.contracts.cache.Placement", value_words(placed))
        for name in ("positions_BT", "slots_BT", "order_BT"):
            if (given := getattr(placed, name)) is checked:
                continue  # slots, orders and positions are mostly the same tensor
            right = getattr(given, "shape", None) in ((rows, width), (1, width))
            words = f"(B, T) = ({rows}, {width})"
            self._alignment._tensor("layout.place", name, given, words, right, batch.tokens_BS)
            checked = given
        if readable(placed.slots_BT) and beyond(slots := placed.slots_BT.numpy(), self._most):
            asked = f"slots_BT from 0 to {self._most}" if self._most < 2**62 else "slots_BT of 0 and more"
            self._alignment._refuse("layout.place", asked, first_beyond(slots, self._most))
        return placed

    def settle(self, batch: Batch, kept: Kept) -> None:
        """Let the layout forget."""
        self._alignment._watched("layout.settle", self.__wrapped__.settle, batch, kept)


class GuardedBackend(Guard):
    """A KV backend, guarded, as its stores are where they first hand out keys and values."""

    kind = "KV backend"

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> KVStore:
        """Return the backend's store after looking for its members."""
        store: Any = self._call("open", shapes, rows, capacity, device)
        self._require("open", store, KVStore)
        STORES[store] = self
        self._look_once(store)
        self._look_at_reserved(store)
        return store

    def of_drafts(self, own: KVBackend) -> KVBackend:
        """Return the backend of drafts' caches, guarded, after looking for its members."""
        backend = self._call("of_drafts", own)
        self._require("of_drafts", backend, KVBackend, "a KV backend")
        return backend if isinstance(backend, Guard) else GuardedBackend(backend)

    def open_states(self, *given: Any) -> StateStore:
        """Return the backend's store of states after looking for its members."""
        store: StateStore = self._call("open_states", *given)
        self._require("open_states", store, PrefixStates if "prefix" in self.offers else StateStore)
        return store

    def _require(self, member: str, store: Any, protocol: type, called: str = "a store") -> None:
        """Refuse a store, or a backend, that lacks members of its protocol."""
        members = members_of(protocol)
        if lacking := [name for name in members if not hasattr(store, name)]:
            without = "" if len(lacking) == len(members) else f" without {', '.join(lacking)}"
            self._refuse(member, f"{called} with {', '.join(members)}", f"{value_words(store)}{without}")

    def _look_at_reserved(self, store: Any) -> None:
        """Have what a store says of cached tokens looked at, where its ``reserve`` can be replaced."""
        held = weakref.ref(store)  # a store that held itself would keep its memory until the next collection

        def checked(sequence: Sequence, tokens: int) -> int | None:
            one: Any = held()
            cached = type(one).reserve(one, sequence, tokens)
            if cached is not None and (type(cached) is not int or not 0 <= cached <= tokens):
                self._refuse("store.reserve", f"a number of tokens from 0 to {tokens}, or None", value_words(cached))
            return cached

        if hasattr(store, "__dict__") and hasattr(type(store), "reserve"):
            store.reserve = checked

    def _look_once(self, store: Any) -> None:
        """Have the first view that a store hands out looked at, where its ``write`` can be replaced for so long."""
        write = store.write

        def checked(layer: int, keys: torch.Tensor, values: torch.Tensor) -> Any:
            vars(store).pop("write", None)  # whoever holds it may call it again
            view = write(layer, keys, values)
            if not isinstance(view, Dense | Paged):
                self._refuse("store.write", "a Dense or Paged view of specframe.contracts.cache", value_words(view))
            if isinstance(view, Dense):
                for name, given, fed in (("keys", view.keys, keys), ("values", view.values, values)):
                    self._look_at(name, given, fed)
            return view

        if hasattr(store, "__dict__"):
            store.write = checked

    def _look_at(self, name: str, given: Any, fed: torch.Tensor) -> None:
        """Check the shape of all slots' keys or values against the shape of the written ones."""
        rows, heads, _, size = fed.shape
        shape = tuple(getattr(given, "shape", ()))
        if len(shape) != 4 or (shape[0], shape[1], shape[3]) != (rows, heads, size):
            words = f"{name} of shape (B, H, S, D) = ({rows}, {heads}, S, {size})"
            self._refuse("store.write", words, shape or value_words(given))


class GuardedAttention(Guard):
    """An attention backend, guarded where it is asked and plans."""

    kind = "attention backend"

    def suits(self, facts: AttentionFacts) -> bool:
        """Return whether it suits a model after checking that it says so."""
        suits = self._call("suits", facts)
        if not isinstance(suits, bool):
            self._refuse("suits", "true or false", value_words(suits))
        return suits

    def plan(self, placement: Placement) -> Attend | None:
        """Return the backend's plan after checking that it attends."""
        plan = self._call("plan", placement)
        if plan is not None and not callable(getattr(plan, "attend", None)):
            self._refuse("plan", "an object with attend, or None", value_words(plan))
        return None if plan is None else GuardedPlan(plan, self, "plan")


class GuardedPlan(GuardedPart):
    """Guard of the attention of one forward; errors name its backend."""

    def attend(self, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
        """Return the values attended to after checking them."""
        output: Any = self.__wrapped__.attend(query, view, scaling, window)
        rows, heads, width, _ = query.shape
        shape = (rows, width, heads, view.values.shape[-1])
        if getattr(output, "shape", None) != shape or output.dtype != query.dtype:
            asked = f"values of shape (B, T, H, D) = {shape} in {str(query.dtype)[6:]}"
            dtype = getattr(output, "dtype", None)
            self.owner._refuse("plan.attend", asked, value_words(output) + (f" in {str(dtype)[6:]}" if dtype else ""))
        return output
