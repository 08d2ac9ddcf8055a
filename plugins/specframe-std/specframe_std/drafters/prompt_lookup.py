"""Prompt lookup: what followed the row's last tokens the last time they occurred (Saxena 2023).

The method is that of ``prompt_lookup_num_tokens`` in transformers. Here the most recent occurrence is taken, and all rows are
looked up at once on the device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch
from specframe.contracts.run import Run
from specframe.value_checks import whole

NO_TOKEN = -1
"""In place of the tokens before a row's first."""
MOST_COMPARED = 64
"""Every place of every row is compared with so many tokens at once: memory grows with it."""


class PromptLookup:
    """Proposes what followed the most recent earlier occurrence of the row's last tokens, in prompt and output.

    Of all places the one counts where the most tokens, up to ``ngram``, match those at the end; among equals the latest. Where
    it is so near the end that fewer tokens follow than are asked for, they are repeated, as they would be if the lookup went
    on after them. A row in which not even the last token occurred before proposes nothing. Needs no draft model, and takes place on
    the device in shapes that do not depend on what is found.

    Options:
        ngram: tokens compared at most, from 1 to 64.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain"})

    def __init__(self, ngram: int = 3) -> None:
        self._ngram = whole("ngram", ngram, 1, MOST_COMPARED)

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return ``budget.depth`` tokens per row, all of them filler in a row without a match; there are no logits."""
        if budget.depth == 0:
            return Draft(batch.tokens_BS[:, :0])
        start_B, found_B = follower(batch, self._ngram)
        start_B1 = start_B[:, None]
        period_B1 = batch.lengths_B[:, None] - start_B1
        places_BK = start_B1 + torch.arange(budget.depth, device=start_B1.device) % period_B1
        return Draft(batch.tokens_BS.gather(1, places_BK), counts_B=found_B * budget.depth)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn: the tokens are in the next batch."""


def follower(batch: Batch, ngram: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the place after the earlier tokens that are most like each row's last, (B,), and whether there are any, (B,).

    Where there are none the place is the last token's own.
    """
    last_B1 = batch.lengths_B[:, None] - 1
    windows_BSN = F.pad(batch.tokens_BS, (ngram - 1, 0), value=NO_TOKEN).unfold(1, ngram, 1)  # ending at each place
    suffix_B1N = windows_BSN.gather(1, last_B1[:, :, None].expand(-1, -1, ngram))
    same_BSN = (windows_BSN == suffix_B1N) & (suffix_B1N != NO_TOKEN)
    matched_BS = same_BSN.flip(-1).cumprod(-1).sum(-1)
    places_S = torch.arange(matched_BS.shape[1], device=matched_BS.device)
    found_BS = (matched_BS > 0) & (places_S < last_B1)
    score_BS = (matched_BS * len(places_S) + places_S).where(found_BS, -1)
    found_B = found_BS.any(1)
    return (score_BS.argmax(1) + 1).where(found_B, last_B1[:, 0]), found_B
