"""Instrumentation: objects around an acceptance rule, an alignment, its layouts and their stores that report to a listener.

What is instrumented works as before and keeps all its members. One alignment may be instrumented several times: a run that is
checked and traced does so twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Acceptance, Block, Draft, Scores, Transfer
from specframe.contracts.roles import Alignment, MakesLayout
from specframe.contracts.round import Batch, Kept, Sequence
from specframe.model.run import Run
from specframe.value_checks import Wrapper


class CallListener:
    """Receives one run, or one cache. A subclass has the methods it needs; those here do nothing."""

    def started(self, run: Run) -> None:
        """The alignment has started a run, as the last of the roles: their caches are open."""

    def opening(self, rows: int) -> CallListener | None:
        """A cache of ``rows`` rows is about to get its layout; return the listener to it, or None."""
        return None

    def by_rule(self, acceptance: Acceptance, batch: Batch, draft: Draft, scores: Scores) -> None:
        """The acceptance rule has returned its acceptance result."""

    def committed(self, batch: Batch, order: list[Sequence], by_rule: Acceptance, stands: Transfer) -> None:
        """The alignment has returned what it commits of the rule's result.

        Args:
            batch: the rows.
            order: the batch's sequences before.
            by_rule: a copy of the rule's result without padding, made before the alignment could write to it.
            stands: the committed acceptance result.
        """

    def arranged(self, sequences: list[Sequence]) -> None:
        """A store has made these sequences its rows."""

    def moved(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """A store has moved slots, see :meth:`specframe.contracts.cache.KVStore.move`."""

    def placed(self, placement: Placement, batch: Batch, block: Block) -> None:
        """A layout has placed a block that is about to be fed."""

    def settled(self, batch: Batch, kept: Kept) -> None:
        """A layout has forgotten all but these tokens, see :meth:`specframe.contracts.roles.Layout.commit`."""


class Instrumented(Wrapper):
    """An object around another one, with all its members, some of which are reported after they were called.

    Args:
        inner: the object.
        listener: receives the value that a call returned, unless that is None, and then its arguments.
        told: the listener's method for each member that is reported.
    """

    def __init__(self, inner: Any, listener: CallListener, **told: str) -> None:
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


class TappedAlignment(Instrumented):
    """An alignment whose start, layouts and commits are reported."""

    def __init__(self, alignment: Alignment, listener: CallListener) -> None:
        super().__init__(alignment, listener, start="started")
        self.offers = alignment.offers - {"deferred"}  # listeners receive a round when the one before has landed

    def layout(self, store: KVStore, rows: int, capacity: int) -> Any:
        """Return the alignment's layout, instrumented with its store where somebody listens to the cache."""
        listener = self._listener.opening(rows)
        if listener is None:
            return self.__wrapped__.layout(store, rows, capacity)
        return tapped_layout(self.__wrapped__.layout, listener, store, rows, capacity)

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        """Report what is committed and return it."""
        order, acceptance = list(batch.sequences), transfer.acceptance
        by_rule = attrs.evolve(
            acceptance, accepted_B=acceptance.accepted_B.clone(), tokens_BT=acceptance.tokens_BT.clone()
        )
        stands: Transfer = self.__wrapped__.commit(batch, draft, transfer)
        self._listener.committed(batch, order, by_rule, stands)
        return stands


def tapped_layout(make: MakesLayout, listener: CallListener, store: KVStore, rows: int, capacity: int) -> Instrumented:
    """Return a layout that is instrumented, and so is its store."""
    tapped_store: Any = Instrumented(store, listener, arrange="arranged", move="moved")
    return Instrumented(make(tapped_store, rows, capacity), listener, place="placed", commit="settled")


def listeners(layout: Any) -> Iterator[CallListener]:
    """Yield the listeners to a layout, those of the outermost object first."""
    while layout is not None:
        if isinstance(layout, Instrumented):
            yield layout._listener
        layout = getattr(layout, "__wrapped__", None)
