"""Layouts: where the tokens of one cache are, and where those about to be fed go."""

from __future__ import annotations

from typing import Protocol

from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch, Kept


class Layout(Protocol):
    """The slots of one model's cache under one alignment."""

    static: bool
    """Whether places follow from ``lengths_B`` alone: several forwards can then be recorded as one, and chains need no settling."""

    def arrange(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of what follows, moving whatever has to move. Nothing when all is in place."""

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return places for the tokens about to be fed. What precedes a row's first token is padding, and so is what is not real of
        a row's own tokens (``block.real``): these are cached, and are not to be written over."""

    def settle(self, batch: Batch, kept: Kept) -> None:
        """Forget all tokens but those that stand.

        A layout that is ``static`` is told of paths only.
        """
