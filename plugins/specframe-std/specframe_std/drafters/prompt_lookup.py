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
from specframe.devices.kinds import on_device
from specframe.errors import OptionError, literal
from specframe.model.run import Run
from specframe.value_checks import whole
from specframe_std.trees.tree_options import Trees

NO_TOKEN = -1
"""In place of the tokens before a row's first."""
MOST_COMPARED = 64
"""Tokens with which every place of every row is compared at once: memory grows with it."""
MOST_MATCHES = 8
"""Matches of a row that become one tree: more are rarely better than these, and each is compared with all others."""


class PromptLookup:
    """Proposes what followed the most recent earlier occurrence of the row's last tokens, in prompt and output.

    Of all places the one counts where the most tokens, up to ``ngram``, match those at the end; among equals the latest. Where
    it is so near the end that fewer tokens follow than are asked for, they are repeated, as they would be if the lookup went
    on after them. A row in which not even the last token occurred before proposes nothing. Needs no draft model, and takes place on
    the device in shapes that do not depend on what is found.

    As a tree it proposes what followed the best matches, up to 8 of them: what several of them begin with is there once.

    Options:
        ngram: tokens compared at most, from 1 to 64.
        tree: "chain"; "dynamic": a tree of what followed the best matches, up to 8 of them.
        nodes: nodes of the tree; without it 16.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain"})

    def __init__(self, ngram: int = 3, tree: str = "chain", nodes: int | None = None) -> None:
        self._ngram = whole("ngram", ngram, 1, MOST_COMPARED)
        if tree not in ("chain", "dynamic"):
            raise OptionError(f"tree: expected chain or dynamic, got {literal(tree)}")
        self._trees = Trees(tree, nodes=nodes)
        if not self._trees.chain:
            self.needs, self.offers = frozenset({"tree", "move"}), frozenset({"tree", "budget"})

    def budget(self, depth: int | None = None) -> Budget | None:
        """Return the budget of a tree, or None: a chain of any length."""
        return None if self._trees.chain else self._trees.budget(depth)

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return ``budget.depth`` tokens per row, or a tree, all padding in a row without a match; there are no logits."""
        if budget.depth == 0:
            return Draft(batch.tokens_BS[:, :0])
        if not self._trees.chain:
            return merged(batch, budget, *likeness(batch, self._ngram))
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
    score_BS, found_BS = likeness(batch, ngram)
    found_B = found_BS.any(1)
    return (score_BS.argmax(1) + 1).where(found_B, batch.lengths_B - 1), found_B


def likeness(batch: Batch, ngram: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how much the tokens before each place are like each row's last, (B, S), and whether they are at all, (B, S).

    Of equally like ones the later is more so; -1: not at all.
    """
    last_B1 = batch.lengths_B[:, None] - 1
    windows_BSN = F.pad(batch.tokens_BS, (ngram - 1, 0), value=NO_TOKEN).unfold(1, ngram, 1)  # ending at each place
    suffix_B1N = windows_BSN.gather(1, last_B1[:, :, None].expand(-1, -1, ngram))
    same_BSN = (windows_BSN == suffix_B1N) & (suffix_B1N != NO_TOKEN)
    matched_BS = same_BSN.flip(-1).cumprod(-1).sum(-1)
    places_S = torch.arange(matched_BS.shape[1], device=matched_BS.device)
    found_BS = (matched_BS > 0) & (places_S < last_B1)
    return (matched_BS * len(places_S) + places_S).where(found_BS, -1), found_BS


def merged(batch: Batch, budget: Budget, score_BS: torch.Tensor, found_BS: torch.Tensor) -> Draft:
    """Return the tokens after the best matches as one tree, those of the best one first.

    C matches have K tokens each; M are the tokens of all of them, match by match.
    """
    device, depth = batch.tokens_BS.device, budget.depth
    best_BC = score_BS.topk(min(MOST_MATCHES, score_BS.shape[1])).indices
    found_BC = found_BS.gather(1, best_BC)
    start_BC1 = (best_BC + 1).where(found_BC, batch.lengths_B[:, None] - 1)[..., None]
    places_K = torch.arange(depth, device=device)
    places_BCK = start_BC1 + places_K % (batch.lengths_B[:, None, None] - start_BC1)
    tokens_BM = batch.tokens_BS.gather(1, places_BCK.flatten(1))
    tokens_BCK = tokens_BM.view_as(places_BCK)

    matches_C = torch.arange(best_BC.shape[1], device=device)
    alike_BCCK = (tokens_BCK[:, :, None] == tokens_BCK[:, None]).long().cumprod(-1) > 0
    elder_BCCK = alike_BCCK & (matches_C[:, None] > matches_C)[..., None]  # a better match begins with the same tokens
    first_BCK = elder_BCCK.long().argmax(2).where(elder_BCCK.any(2), matches_C[:, None])
    real_BCK = found_BC[..., None] & (first_BCK == matches_C[:, None])
    if budget.depths_B is not None:
        real_BCK &= places_K < on_device(budget.depths_B, device)[:, None, None]

    index_BM = (~real_BCK.flatten(1)).long().sort(dim=1, stable=True).indices
    above_BCK = F.pad(first_BCK * depth + places_K, (1, 0))[..., :-1]  # the parent's place among all tokens
    parents_BM = index_BM.argsort(1).gather(1, above_BCK.flatten(1)).where((places_K > 0).repeat(len(matches_C)), -1)
    pad = (0, max(0, budget.nodes - index_BM.shape[1]))
    counts_B = real_BCK.flatten(1).sum(1).clamp(max=budget.nodes)
    nodes_N = torch.arange(budget.nodes, device=device)
    tokens_BN = F.pad(tokens_BM.gather(1, index_BM), pad)[:, : budget.nodes]
    parents_BN = F.pad(parents_BM.gather(1, index_BM), pad, value=-1)[:, : budget.nodes]
    parents_BN = parents_BN.where(nodes_N < counts_B[:, None], -1)
    return Draft(tokens_BN, parents_BN=parents_BN, counts_B=counts_B, depth=min(depth, budget.nodes))
