"""The rows of a batch whose requests ask for speculation."""

from __future__ import annotations

from typing import cast

import attrs
import torch

from specframe.contracts.drafts import Draft, some_rows
from specframe.contracts.round import Batch, Sequence
from specframe.devices.kinds import constant


class Speculating:
    """Makes a batch of the rows that draft, and a draft for all rows of their draft.

    Rows without speculation take no part in the drafter's forwards then, and their tokens are not read by it. The rows that draft
    are one list for as long as the batch is the same one, so that row maps know it again.
    """

    def __init__(self) -> None:
        self._batch: list[Sequence] = []
        self._chosen: list[Sequence] = []

    def batch(self, batch: Batch) -> Batch | None:
        """Return the batch itself where all rows draft, and else a batch of those that do, or None if none do."""
        if batch.sequences is not self._batch:
            chosen = [sequence for sequence in batch.sequences if sequence.request.speculate]
            self._batch, self._chosen = batch.sequences, batch.sequences if len(chosen) == len(batch) else chosen
        if self._chosen is batch.sequences:
            return batch
        if not self._chosen:
            return None
        rows = places(batch)
        own = some_rows(batch, rows, len(batch))
        longest = own.longest
        uncached, left = min(batch.uncached, longest), min(batch.left, longest)
        return attrs.evolve(own, sequences=self._chosen, uncached=uncached, left=left)


def places(batch: Batch) -> list[int]:
    """Return the rows of a batch that draft."""
    return [row for row, sequence in enumerate(batch.sequences) if sequence.request.speculate]


def spread(draft: Draft, batch: Batch) -> Draft:
    """Return the draft of the rows that draft as one for all rows of a batch; the others hold a copy of a row, as padding.

    The copy has the logits that it was drawn by, without the randomness of the row that holds it, so a rule that depends on logits
    is right for it.
    """
    rows = places(batch)
    sources = [rows.index(row) if row in rows else 0 for row in range(len(batch))]
    sources_B = constant(tuple(sources), batch.lengths_B.device)

    def copied(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.expand(len(rows), *tensor.shape[1:])[sources_B]

    return attrs.evolve(
        draft,
        tokens_BN=cast(torch.Tensor, copied(draft.tokens_BN)),
        logits_BNV=copied(draft.logits_BNV),
        parents_BN=copied(draft.parents_BN),
        counts_B=copied(draft.counts_B),
        depth=draft.depth,
    )
