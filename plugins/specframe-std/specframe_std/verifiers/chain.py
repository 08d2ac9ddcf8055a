"""Score a draft, a chain or a tree, in one pass of the target."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specframe.contracts.drafts import Block, Draft, Scores
from specframe.contracts.round import Batch
from specframe.model.run import Run


class ChainVerifier:
    """Feeds each row's last token and its draft to the target in one pass."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain", "tree", "hidden", "deferred"})

    def start(self, run: Run) -> None:
        """Take the target and its cache."""
        self._target = run.target

    def score(self, batch: Batch, draft: Draft) -> Scores:
        """Return the target's scores, logits (B, N + 1, V); prefills prompts, or a chunk of them, when the batch says so."""
        if batch.prefill:
            return self._target.read(batch)
        ids_BT = batch.last_tokens(1)
        if draft.nodes:
            ids_BT = torch.cat([ids_BT, draft.tokens_BN], dim=1)
        parents_BN = draft.parents_BN  # in the block the row's last token is place 0, and node n place n + 1
        parents_BT = None if parents_BN is None else F.pad(parents_BN + 1, (1, 0), value=-1)
        counts = None if draft.counts is None else 1 + draft.counts
        block = Block(ids_BT, -1, parents_BT, counts=counts)
        return self._target.feed(batch, block, keep=draft.nodes + 1, mixed=batch.mixed)
