"""Reports of rounds, to drafters, to clients of an engine and to observers. Shapes: B rows, K nodes of a path, V vocabulary."""

from __future__ import annotations

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Acceptance, Draft, Scores, Transfer
from specframe.contracts.round import Batch, Sequence


@attrs.frozen(eq=False)
class Outcome:
    """A finished round for drafters, whose tokens are committed; also a prefill chunk that the target has read."""

    batch: Batch
    """The rows after the round, with the committed tokens. On the device those that have ended may be longer than they are."""
    draft: Draft
    scores: Scores
    transfer: Transfer | None
    """The acceptance result, with its numbers on the host, or None if a prefill chunk was read, and more of it is to come."""
    lengths: np.ndarray
    """Lengths before the round, (B,), or the most that they were where rounds are deferred."""
    ended: list[Sequence]
    """The sequences with a row that have ended since the outcome before. Samples may yet start from the row of one not ``gone``."""

    @property
    def before(self) -> Batch:
        """The rows with the lengths that they had before the round, which the draft and the scores follow."""
        if self.transfer is None:
            return self.batch
        lengths_B = self.batch.lengths_B - self.transfer.acceptance.accepted_B - 1
        return attrs.evolve(self.batch, lengths_B=lengths_B, lengths=self.lengths)

    @property
    def acceptance(self) -> Acceptance | None:
        """The acceptance result that was committed, or None for a prefill chunk."""
        return None if self.transfer is None else self.transfer.acceptance


@attrs.frozen(eq=False, kw_only=True)
class Progress:
    """What rows gained by a finished round, all on the host: an engine's clients receive it. Arrays have one entry per row."""

    number: int
    """Number of the round, from 1."""
    sequences: list[Sequence]
    prefill: bool
    """Whether the round was a prefill."""
    lengths: np.ndarray
    """Lengths before the round."""
    depth: int
    """Nodes of the draft's longest path."""
    drafted: np.ndarray
    """Number of real draft tokens of each row, up to the row's limit."""
    accepted: np.ndarray
    """Number of accepted draft tokens that were committed."""
    gained: np.ndarray
    """Number of tokens that each row gained, cut at its stop."""
    tokens: list[list[int]]
    """The tokens that each row gained."""
    finished: list[Sequence]
    """The sequences that the round has ended."""


@attrs.frozen(eq=False, kw_only=True)
class RoundReport(Progress):
    """A finished round for observers: its progress and, where this process has decoded it, the detail."""

    transfer: Transfer | None = None
    """The draft and its acceptance result, with their numbers on the host, or None if another process has decoded the round."""
    starts: bool = False
    """Whether the rows were fresh copies of their parents' rows, so that nothing was drafted."""
    computed: int = 0
    """Number of tokens that the target computed, with the padding that it did not leave out, or 0 if another process knows."""
    logits_BTV: torch.Tensor | None = None
    """The target's logits of this round along the accepted path, (B, K + 1, V), on the device. The next round may overwrite
    them."""
    scores_BTV: torch.Tensor | None = None
    """The logits after each row's processors."""

    @property
    def detail(self) -> Transfer:
        """The transfer of a round that this process has decoded; raises :class:`LookupError` where another one has."""
        if self.transfer is None:
            raise LookupError("the report has no draft and no acceptance, since another process has decoded the round")
        return self.transfer

    @property
    def draft(self) -> Draft:
        """The round's draft; raises as :attr:`detail` does."""
        return self.detail.draft

    @property
    def acceptance(self) -> Acceptance:
        """The acceptance result that was committed; raises as :attr:`detail` does."""
        return self.detail.acceptance
