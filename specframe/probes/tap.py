"""A tap: objects around an acceptance rule, an alignment, its layouts and their stores that tell a listener what they do.

What has a tap around it works as before and keeps all its members. Several taps may be around one alignment: a run that is
checked and traced has two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Block, Draft, Scores, Verdict
from specframe.contracts.layout import Layout
from specframe.contracts.round import Batch, Sequence
from specframe.contracts.run import Run


class Listener:
    """Is told of one run, or of one cache. A subclass has the methods it needs; those here do nothing."""

    def starting(self, run: Run) -> None:
        """The alignment is about to be told of a run. The other roles have been: their caches are open."""

    def opening(self, rows: int) -> Listener | None:
        """A cache of so many rows is about to be laid out; return the listener to it, None where there is none."""
        return None

    def judged(self, batch: Batch, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """The acceptance rule has returned its verdict."""

    def committed(self, batch: Batch, order: list[Sequence], judged: Verdict, stands: Verdict) -> None:
        """The alignment has returned what stands of a copy of the rule's verdict; ``order``: the batch's sequences before."""

    def following(self, batch: Batch) -> None:
        """A layout is about to make the batch's sequences its rows."""

    def arranged(self, sequences: list[Sequence]) -> None:
        """A store has made these sequences its rows."""

    def moving(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None) -> None:
        """A store is about to move slots, see :meth:`specframe.contracts.cache.KVStore.move`."""

    def placed(self, batch: Batch, block: Block, placement: Placement) -> None:
        """A layout has placed a block that is about to be fed."""

    def kept(self, batch: Batch, kept: np.ndarray, path_BT: torch.Tensor | None) -> None:
        """A layout has forgotten all but these tokens, see :meth:`specframe.contracts.layout.Layout.keep`."""


class Tap:
    """An object around another one, with all its members."""

    def __init__(self, inner: Any, listener: Listener) -> None:
        self.__wrapped__, self._listener = inner, listener

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


class TappedRule(Tap):
    """An acceptance rule whose verdicts are told."""

    def judge(self, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
        """Return the rule's verdict after telling it."""
        verdict: Verdict = self.__wrapped__.judge(batch, draft, scores)
        self._listener.judged(batch, draft, scores, verdict)
        return verdict


class TappedAlignment(Tap):
    """An alignment whose start, layouts and commits are told."""

    def start(self, run: Run) -> None:
        """Tell of the run, then start the alignment."""
        self._listener.starting(run)
        self.__wrapped__.start(run)

    def layout(self, store: KVStore, rows: int, capacity: int) -> Layout:
        """Return the alignment's layout, with a tap around it and its store where somebody listens to the cache."""
        listener = self._listener.opening(rows)
        if listener is None:
            return self.__wrapped__.layout(store, rows, capacity)  # type: ignore[no-any-return]
        return TappedLayout(self.__wrapped__.layout(TappedStore(store, listener), rows, capacity), listener)

    def commit(self, batch: Batch, draft: Draft, verdict: Verdict) -> Verdict:
        """Return what stands after telling it."""
        order = list(batch.sequences)
        judged = attrs.evolve(verdict, accepted_B=verdict.accepted_B.clone(), tokens_BT=verdict.tokens_BT.clone())
        stands: Verdict = self.__wrapped__.commit(batch, draft, verdict)
        self._listener.committed(batch, order, judged, stands)
        return stands


class TappedLayout(Tap):
    """A layout whose calls are told."""

    def arrange(self, batch: Batch) -> None:
        """Tell of the batch, then let the layout follow it."""
        self._listener.following(batch)
        self.__wrapped__.arrange(batch)

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return the layout's placement after telling it."""
        placement: Placement = self.__wrapped__.place(batch, block)
        self._listener.placed(batch, block, placement)
        return placement

    def keep(self, batch: Batch, kept: np.ndarray, path_BT: torch.Tensor | None = None) -> None:
        """Let the layout forget, then tell it."""
        self.__wrapped__.keep(batch, kept, path_BT)
        self._listener.kept(batch, kept, path_BT)


class TappedStore(Tap):
    """A KV store, as a layout is handed it, whose moves are told."""

    def arrange(self, sequences: list[Sequence]) -> None:
        """Arrange the store, then tell it."""
        self.__wrapped__.arrange(sequences)
        self._listener.arranged(sequences)

    def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """Tell of the slots, then move them."""
        self._listener.moving(sources_BT, targets_BT)
        self.__wrapped__.move(sources_BT, targets_BT)


def listeners(layout: Any) -> Iterator[Listener]:
    """Yield the listeners to a layout, those of the outermost tap first."""
    while layout is not None:
        if isinstance(layout, TappedLayout):
            yield layout._listener
        layout = getattr(layout, "__wrapped__", None)
