"""A chain while a drafter grows it, token by token, until its budget or its stopping rule ends it.

Tensor names carry their shape: B rows, K tokens of the chain, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.round import Batch


class GrowingChain:
    """The tokens of a chain as far as they are chosen, the logits that they were drawn by, and the rows that go on.

    A row that its budget's stopping rule has ended holds padding from there on.

    Args:
        batch: the rows.
        budget: of the draft; its stopping rule is asked before each token is chosen.
    """

    def __init__(self, batch: Batch, budget: Budget) -> None:
        self._batch, self._stopping = batch, budget.stopping
        self.tokens_BK = batch.tokens_BS[:, :0]
        self._logits = list[torch.Tensor]()
        self._on_B = np.ones(len(batch), dtype=bool)
        self._counts_B = np.zeros(len(batch), dtype=np.int64)

    @property
    def length(self) -> int:
        """The number of tokens chosen so far."""
        return self.tokens_BK.shape[1]

    @property
    def may_end(self) -> bool:
        """Whether there is a stopping rule to ask."""
        return self._stopping is not None

    def goes_on(self, logits_B1V: torch.Tensor) -> bool:
        """Return whether some row drafts the next token.

        Args:
            logits_B1V: the token will be drawn by, shaped by the rows' processors.
        """
        if self._stopping is None:
            return True
        self._on_B &= self._stopping.goes_on(self._batch, self.length, logits_B1V[:, 0])
        self._counts_B += self._on_B
        return bool(self._on_B.any())

    def add(self, token_B1: torch.Tensor, logits_B1V: torch.Tensor | None = None) -> None:
        """Add the next token, and the logits that it was drawn by where the acceptance rule looks at them."""
        self.tokens_BK = torch.cat([self.tokens_BK, token_B1], dim=1)
        self._logits += [] if logits_B1V is None else [logits_B1V]

    @property
    def draft(self) -> Draft:
        """The draft, with the number of each row's tokens where a stopping rule was asked."""
        logits_BKV = torch.cat(self._logits, dim=1) if self._logits else None
        return Draft(self.tokens_BK, logits_BKV, counts=self._counts_B if self.may_end else None)
