"""A draft language model with a KV cache that lives as long as its sequences."""

from __future__ import annotations

import numpy as np
import torch

from specframe.contracts.drafts import Budget, Draft, Outcome
from specframe.contracts.round import Batch
from specframe.contracts.rows import Seating
from specframe.contracts.run import Run
from specframe.errors import CompositionError
from specframe.forward.runner import ModelRunner
from specframe.text.sampling import shape, sharpen


class ModelDrafter:
    """Proposes a small language model's own continuation, chosen as the acceptance rule asks.

    After a round the cache may lack the last two tokens of a row (the last draft token is never fed when it is proposed, and
    the bonus token is the target's). Every row is therefore fed exactly its last two tokens first and one token after that:
    K + 1 tokens a round in one shape, whatever was accepted; for a row that lacks only one, the other is written again in its
    own place.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain", "logits"})

    _runner: ModelRunner | None = None

    def start(self, run: Run) -> None:
        """Open the draft model's cache."""
        if run.draft_model is None:
            raise CompositionError("drafter 'model' needs a draft language model: pass one as --drafter or drafter=")
        if self._runner is None or self._runner.model is not run.draft_model:  # a model is tried once
            self._runner = ModelRunner(run.draft_model, "draft")
        self._cache = run.open_cache(self._runner)
        self._rule = run.rule
        self._logits = "logits" in run.rule.needs
        self._samples = "samples" in run.rule.offers
        self._vocabulary = min(run.runner.vocabulary, self._cache.runner.vocabulary)
        self._seating = Seating(run.rows)
        self._cached = np.zeros(run.rows, dtype=np.int64)

    def observe(self, outcome: Outcome) -> None:
        """Read the piece of a prompt that the target has read; all else is told by the next batch's lengths."""
        if outcome.verdict is None:
            self._cache.read(outcome.batch)

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return ``budget.depth`` tokens per row, with the logits they were drawn by where the acceptance rule needs them."""
        draft_length = budget.depth
        self._seating.arrange(batch.sequences).apply_host(self._cached)
        cached = self._cached[: len(batch)]
        np.minimum(cached, batch.lengths - 1, out=cached)  # what was rejected is no part of it
        if batch.prefill:
            self._cache.read(batch, left=1)
            cached[:] = batch.lengths - 1
        if draft_length == 0:
            self._cache.follow(batch)
            return Draft(batch.tokens_BS[:, :0])

        width = max(2, int((batch.lengths - cached).max()))
        self._cache.keep(batch, np.maximum(batch.lengths - width, 0))
        cached[:] = batch.lengths + draft_length - 1
        if self._unshaped(batch):
            return Draft(self._cache.extend(batch, batch.last_tokens(width), draft_length, self._choose, pure=True))

        drafted, logits = [batch.tokens_BS[:, :0]], []

        def choose(batch: Batch, offset: int, logits_B1V: torch.Tensor) -> torch.Tensor:
            logits_B1V = shape(batch, torch.cat(drafted, dim=1), logits_B1V[..., : self._vocabulary])
            if self._samples:
                logits_B1V = sharpen(batch, logits_B1V)
            logits.append(logits_B1V)
            drafted.append(self._choose(batch, offset, logits_B1V))
            return drafted[-1]

        tokens_BK = self._cache.extend(batch, batch.last_tokens(width), draft_length, choose)
        return Draft(tokens_BK, torch.cat(logits, dim=1) if self._logits else None)

    def _unshaped(self, batch: Batch) -> bool:
        """Return whether tokens are chosen from the logits as they are, which nobody else wants to see."""
        if self._logits or self._samples:
            return False
        return not any(one.request.plan.prefixed or one.request.plan.positionwise for one in batch.sequences)

    def _choose(self, batch: Batch, offset: int, logits_B1V: torch.Tensor) -> torch.Tensor:
        return self._rule.choose(batch, offset, logits_B1V[:, 0, : self._vocabulary])[:, None]
