"""Score a draft as one chain of tokens, in one pass of the target."""

from __future__ import annotations

import torch

from specframe.contracts.drafts import Draft
from specframe.contracts.round import Batch
from specframe.forward.run import Run


class ChainVerifier:
    """Feeds each row's last token and its draft to the target in one pass."""

    def start(self, run: Run) -> None:
        """Take the target and its cache."""
        self._target = run.target

    def score(self, batch: Batch, draft: Draft) -> torch.Tensor:
        """Return the target's logits (B, K + 1, V); reads prompts, or a piece of them, when the batch says so."""
        if batch.prefill:
            logits_B1V = self._target.read(batch)
            assert logits_B1V is not None, "a prompt has at least one token"
            return logits_B1V
        ids_BT = torch.cat([batch.last_tokens(1), draft.tokens_BK], dim=1)
        return self._target.feed(batch, ids_BT, offset=draft.length, keep=draft.length + 1)
