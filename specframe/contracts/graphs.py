"""Captured forwards and rounds, which the host launches in one call each."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Protocol

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Acceptance, Block, Budget, Draft, Scores
from specframe.contracts.model import ForwardOptions, Model
from specframe.contracts.round import Batch

if TYPE_CHECKING:
    from specframe.engine.open_run import Flight


class Forward(Protocol):
    """A forward over one store."""

    def __call__(self, block: Block, placement: Placement, keep: int, hidden: tuple[int, ...] = ()) -> Scores:
        """Return the scores of the last ``keep`` tokens of a block, and the hidden states of these numbers."""


class ModelGraphs(Protocol):
    """What is captured of one model over one store, in this run and in those before."""

    how: ForwardOptions
    """How its forwards are run: the options of the run that captured them first."""
    rounds: Any
    """The rounds of this run that are captured whole; ``clear()`` lets go of them."""

    @property
    def new_shapes(self) -> int:
        """The times in this run that a forward took longer than others of its shape: it was new, or was captured."""

    def room(self, rows: int, tokens: int) -> int | None:
        """Return how many tokens of each row a mixed batch has room for in its prefill chunk, of ``rows`` rows with ``tokens``
        tokens, or None where it is not to be captured."""

    def begin(self, forward: Forward, store: KVStore, slots: int) -> Callable[..., Scores]:
        """Return what is called in place of ``forward``, over a store of ``slots`` slots a row.

        It is given the store's row of the block's first as well, after ``hidden``.
        """


class StoreGraphs(Protocol):
    """What is captured over one store. The option "graphs" makes it, given whether the store offers "any-row"."""

    def of(self, model: Model, how: ForwardOptions) -> ModelGraphs | None:
        """Return what is captured of a model that is fed through the store now, or None if nothing can be."""

    def end(self) -> None:
        """Keep what this run has captured for the next one."""


class CapturedRounds(Protocol):
    """The rounds of one run that are captured whole. The option "rounds" makes it, or None where none are, given the run, its
    composition and its check of a round's numbers."""

    def kind(self, batch: Batch, budget: Budget) -> Hashable | None:
        """Return all that a round depends on beside what is on the device, or None if it is not to be captured.

        The drafter is prepared then, and :meth:`specframe.contracts.roles.CapturedDrafter.draw` is called for the draft.
        """

    def decoded(
        self,
        kind: Hashable,
        batch: Batch,
        budget: Budget,
        decide: Callable[[Batch, Draft], Flight],
        append: Callable[[Batch, Acceptance], None],
    ) -> Flight | None:
        """Return a round that was given to the device as one graph, or None where there is none of this kind.

        Args:
            kind: of the round.
            batch, budget: as the round has them.
            decide: returns the round of a draft, but for its tokens, which ``append`` appends.
        """
