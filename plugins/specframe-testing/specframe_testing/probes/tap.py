"""A tap: objects around an acceptance rule, an alignment, its layouts and their stores that tell a listener what they do.

What has a tap around it works as before and keeps all its members. Several taps may be around one alignment: a run that is
checked and traced has two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Block, Draft, Scores, Transfer, Verdict
from specframe.contracts.roles import Alignment, MakesLayout
from specframe.contracts.round import Batch, Kept, Sequence
from specframe.forward.run import Run
from specframe.value_checks import Wrapper


class Listener:
    """Is told of one run, or of one cache. A subclass has the methods it needs; those here do nothing."""

    def started(self, run: Run) -> None:
        """The alignment has been told of a run, as the last of the roles: their caches are open."""

    def opening(self, rows: int) -> Listener | None:
        """A cache of so many rows is about to be laid out; return the listener to it, None where there is none."""
        return None

    def judged(self, verdict: Verdict, batch: Batch, draft: Draft, scores: Scores) -> None:
        """The acceptance rule has returned its verdict."""

    def committed(self, batch: Batch, order: list[Sequence], judged: Verdict, stands: Transfer) -> None:
        """The alignment has returned what stands of the rule's verdict.

        Args:
            batch: the rows.
            order: the batch's sequences before.
            judged: a copy of the rule's verdict without filler, made before the alignment could write to it.
            stands: the committed verdict.
        """

    def arranged(self, sequences: list[Sequence]) -> None:
        """A store has made these sequences its rows."""

    def moved(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """A store has moved slots, see :meth:`specframe.contracts.cache.KVStore.move`."""

    def placed(self, placement: Placement, batch: Batch, block: Block) -> None:
        """A layout has placed a block that is about to be fed."""

    def settled(self, batch: Batch, kept: Kept) -> None:
        """A layout has forgotten all but these tokens, see :meth:`specframe.contracts.roles.Layout.settle`."""


class Tap(Wrapper):
    """An object around another one, with all its members, some of which are told after they were called.

    Args:
        inner: the object.
        listener: is told the value that a call returned, unless that is None, and then its arguments.
        told: the listener's method for each member that is told.
    """

    def __init__(self, inner: Any, listener: Listener, **told: str) -> None:
        super().__init__(inner)
        self._listener, self._told = listener, told

    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if name not in self._told:
            return member

        def call(*given: Any, **named: Any) -> Any:
            returned = member(*given, **named)
            getattr(self._listener, self._told[name])(*([] if returned is None else [returned]), *given, **named)
            return returned

        return call


class TappedAlignment(Tap):
    """An alignment whose start, layouts and commits are told."""

    def __init__(self, alignment: Alignment, listener: Listener) -> None:
        super().__init__(alignment, listener, start="started")

    def layout(self, store: KVStore, rows: int, capacity: int) -> Any:
        """Return the alignment's layout, with a tap around it and its store where somebody listens to the cache."""
        listener = self._listener.opening(rows)
        if listener is None:
            return self.__wrapped__.layout(store, rows, capacity)
        return tapped_layout(self.__wrapped__.layout, listener, store, rows, capacity)

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        """Return what stands after telling it."""
        order, verdict = list(batch.sequences), transfer.verdict
        judged = attrs.evolve(verdict, accepted_B=verdict.accepted_B.clone(), tokens_BT=verdict.tokens_BT.clone())
        stands: Transfer = self.__wrapped__.commit(batch, draft, transfer)
        self._listener.committed(batch, order, judged, stands)
        return stands


def tapped_layout(make: MakesLayout, listener: Listener, store: KVStore, rows: int, capacity: int) -> Tap:
    """Return a layout with a tap around it and its store."""
    tapped_store: Any = Tap(store, listener, arrange="arranged", move="moved")
    return Tap(make(tapped_store, rows, capacity), listener, place="placed", settle="settled")


def listeners(layout: Any) -> Iterator[Listener]:
    """Yield the listeners to a layout, those of the outermost tap first."""
    while layout is not None:
        if isinstance(layout, Tap):
            yield layout._listener
        layout = getattr(layout, "__wrapped__", None)
