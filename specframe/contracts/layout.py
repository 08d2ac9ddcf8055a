"""Layouts: where the tokens of one cache are, and where those about to be fed go.

Tensor names carry their shape: B rows, K nodes of an accepted path.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch


class Layout(Protocol):
    """The slots of one model's cache under one alignment."""

    static: bool
    """Whether places follow from ``lengths_B`` alone: several forwards can then be recorded as one."""

    def arrange(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of what follows, moving whatever has to move. Nothing when all is in place."""

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return places for the tokens about to be fed. What lies before a row's first token is padding."""

    def keep(self, batch: Batch, kept: np.ndarray, path_BT: torch.Tensor | None = None) -> None:
        """Keep the first ``kept[i]`` tokens of row i and forget the rest.

        Args:
            path_BT: the nodes of the accepted path in the block fed last, (B, K): they are the tokens that follow the row's own.
                Node 0 is the first token of the block after the row's last. None: the block was a chain.
        """
