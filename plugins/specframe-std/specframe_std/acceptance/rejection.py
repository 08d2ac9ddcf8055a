"""Speculative sampling by rejection (Leviathan et al. 2023, Chen et al. 2023), on trees recursively (Miao et al. 2024)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specframe.contracts.drafts import Acceptance, Draft, Scores
from specframe.contracts.round import Batch
from specframe.errors import OptionError, literal
from specframe.model.run import Run
from specframe_std.noise import Stream, gumbel, hash_parts, uniform
from specframe_std.trees.children import likeliest
from specframe_std.trees.paths import ancestors, depths, elders

SIBLINGS = ("distinct", "independent", "likely")
"""How the children of a node are drawn."""


class Rejection:
    """Accepts a draft token with probability min(1, p/q) and resamples the first rejected from the residual max(0, p - q).

    In a tree the children of a node are tried in turn, each against what the ones before it left of p, and the first that is
    accepted is gone on from. Where the draft has no distribution (a logit is nan or infinity), and where it has padding, a row's
    result is as if nothing had been drafted there.

    Options:
        siblings: how the children of a node are drawn: "distinct", without replacement; "independent", with replacement; "likely":
            not drawn, the most likely tokens are taken, and a dynamic tree may choose among them.
    """

    needs = frozenset({"logits"})
    offers = frozenset({"lossless", "samples", "tree", "distinct", "deferred"})

    _siblings = "distinct"

    def __init__(self, siblings: str = "distinct") -> None:
        if siblings not in SIBLINGS:
            raise OptionError(
                f"siblings: expected {', '.join(SIBLINGS[:-1])} or {SIBLINGS[-1]}, got {literal(siblings)}"
            )
        self._siblings = siblings
        if siblings != "distinct":
            self.offers = self.offers - {"distinct"} | {"prunable" if self._certain else siblings}
        if self._certain:
            self.needs = frozenset()

    @property
    def _certain(self) -> bool:
        """Whether drafts are not drawn, but certain."""
        return self._siblings == "likely"

    def start(self, run: Run) -> None:
        """Take the seed."""
        self._seed = run.seed

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return a sample from the draft's distribution for the position ``offset`` after each row's end, (B,)."""
        if self._certain:
            return logits_BV.argmax(-1)
        positions_B = batch.positions(offset, 1)[:, 0]
        noise_BV = gumbel(self._seed, of_this_round(batch), positions_B, Stream.DRAFT, logits_BV.shape[-1])
        return (logits_BV + noise_BV).argmax(-1)

    def siblings(
        self, batch: Batch, offset: int, logits_BFV: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return samples of the draft's distributions after F nodes, (B, F, count), and the logarithms of their probabilities."""
        if self._certain:
            return likeliest(logits_BFV, count)
        nodes_F = torch.arange(logits_BFV.shape[1], device=logits_BFV.device)
        streams_BF, positions_B1 = hash_parts(of_this_round(batch)[:, None], nodes_F), batch.positions(offset, 1)
        tokens_BFC = self._drawn(streams_BF, positions_B1, logits_BFV, count)
        return tokens_BFC, logits_BFV.float().log_softmax(-1).gather(2, tokens_BFC)

    def _drawn(
        self, streams_BF: torch.Tensor, positions_B1: torch.Tensor, logits_BFV: torch.Tensor, count: int
    ) -> torch.Tensor:
        """Return the samples: distinct ones are the most likely tokens under one noise, in that order (Kool et al. 2019)."""

        def noisy(streams_BF: torch.Tensor) -> torch.Tensor:
            return logits_BFV + gumbel(self._seed, streams_BF, positions_B1, Stream.DRAFT, logits_BFV.shape[-1])

        if self._siblings == "distinct":
            return noisy(streams_BF).topk(count).indices
        return torch.stack([noisy(hash_parts(streams_BF, draw)).argmax(-1) for draw in range(count)], dim=-1)

    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        """Return the accepted prefix and a sample from the residual after it (from the target if all are accepted)."""
        target_BTV = scores.logits_BTV.float().softmax(-1)
        if draft.parents_BN is not None:
            return self._accept_tree(batch, draft, target_BTV)
        draft_BKV = probabilities(draft, target_BTV.shape[-1])
        accepted_B = self._accepted(batch, draft, target_BTV, draft_BKV)
        scale_B = torch.ones_like(accepted_B, dtype=torch.float32)
        weights_BV = residual(draft, accepted_B, target_BTV, draft_BKV, scale_B)
        return acceptance(self._seed, batch, draft, accepted_B, weights_BV)

    def _accept_tree(self, batch: Batch, draft: Draft, target_BTV: torch.Tensor) -> Acceptance:
        """Try the nodes one after the other, each if its parent is the node that was accepted last."""
        parents_BN, chances_BN = draft.above_BN, chances(self._seed, batch, draft.nodes)
        draft_BNV = self._proposals(draft, target_BTV.shape[-1])
        left_BV, last_B, meant_BN = target_BTV[:, 0], torch.full_like(batch.lengths_B, -1), meant(draft)
        for node in range(draft.nodes):
            tried_B = parents_BN[:, node] == last_B
            if meant_BN is not None:
                tried_B &= meant_BN[:, node]
            token_B1, weights_BV = draft.tokens_BN[:, node : node + 1], draft_BNV[:, node]
            p_B, q_B = left_BV.gather(1, token_B1)[:, 0], weights_BV.gather(1, token_B1)[:, 0]
            stands_B = tried_B & (chances_BN[:, node] * q_B < p_B) & (q_B > 0)
            left_BV = normal(left_BV - weights_BV, left_BV).where(tried_B[:, None], left_BV)
            left_BV = target_BTV[:, node + 1].where(stands_B[:, None], left_BV)
            last_B = torch.where(stands_B, node, last_B)
        return at(self._seed, batch, draft, last_B, left_BV)

    def _proposals(self, draft: Draft, vocabulary: int) -> torch.Tensor:
        """Return the distribution that each node was drawn from, (B, N, V)."""
        drawn_BNV = probabilities(draft, vocabulary)
        return without_elders(draft, drawn_BNV) if self._siblings == "distinct" else drawn_BNV

    def _accepted(self, batch: Batch, draft: Draft, target_BTV: torch.Tensor, draft_BKV: torch.Tensor) -> torch.Tensor:
        chance_BK = ratios(draft, target_BTV, draft_BKV)
        drawn_BK = uniform(self._seed, of_this_round(batch)[:, None], batch.positions(0, draft.nodes), Stream.ACCEPT)
        return (drawn_BK < chance_BK).long().cumprod(1).sum(1)


def of_this_round(batch: Batch) -> torch.Tensor:
    """Return a stream of random numbers for each row that is used in this round only, (B,).

    The numbers of rejected positions are not used again in later rounds. A rule that decides on the whole draft has used them
    for its decision, so that they would no longer be independent of the result.
    """
    return hash_parts(batch.streams_B, batch.lengths_B)


def probabilities(draft: Draft, vocabulary: int) -> torch.Tensor:
    """Return the draft's distributions over the target's vocabulary, (B, K, V).

    A draft without logits was not sampled: its distribution has probability 1 on each proposed token.
    """
    if draft.logits_BNV is None:
        return F.one_hot(draft.tokens_BN, vocabulary).float()
    known = draft.logits_BNV.float().softmax(-1)
    return F.pad(known, (0, vocabulary - known.shape[-1]))


def likelihoods(distributions_BTV: torch.Tensor, draft: Draft) -> torch.Tensor:
    """Return the probability of each draft token, (B, N)."""
    if draft.parents_BN is not None:
        rows_B1 = torch.arange(len(distributions_BTV), device=distributions_BTV.device)[:, None]
        return distributions_BTV[rows_B1, draft.above_BN + 1, draft.tokens_BN]
    return distributions_BTV[:, : draft.nodes].gather(2, draft.tokens_BN[:, :, None])[:, :, 0]


def meant(draft: Draft) -> torch.Tensor | None:
    """Return which nodes are no padding, (B, N), or None for all."""
    if draft.counts_B is None:
        return None
    return torch.arange(draft.nodes, device=draft.counts_B.device) < draft.counts_B[:, None]


def no_padding(draft: Draft, stands_BN: torch.Tensor) -> torch.Tensor:
    """Return whether nodes are accepted, (B, N), without padding.

    For rules that accept other tokens than the target's own: were padding cut afterwards, the next token would be padding.
    """
    meant_BN = meant(draft)
    return stands_BN if meant_BN is None else stands_BN & meant_BN


def ratios(draft: Draft, target_BTV: torch.Tensor, draft_BKV: torch.Tensor) -> torch.Tensor:
    """Return P(x) / Q(x) of each token of a chain, (B, K), or 0 for padding, and where Q(x) is 0 or Q is no distribution."""
    q_BK, meant_BK = likelihoods(draft_BKV, draft), meant(draft)
    drawn_BK = q_BK > 0  # nan is not
    if meant_BK is not None:
        drawn_BK &= meant_BK
    return torch.where(drawn_BK, likelihoods(target_BTV, draft) / q_BK, 0)


def without_elders(draft: Draft, drawn_BNV: torch.Tensor) -> torch.Tensor:
    """Return distributions in which the tokens of a node's earlier siblings have no probability, all 0 where nothing is left."""
    tokens_BNN = draft.tokens_BN[:, None].expand(-1, draft.nodes, -1)
    gone_BNV = torch.zeros_like(drawn_BNV).scatter_add_(2, tokens_BNN, elders(draft).to(drawn_BNV.dtype))
    left_BNV = drawn_BNV.masked_fill(gone_BNV > 0, 0)
    return left_BNV / left_BNV.sum(-1, keepdim=True).clamp(min=torch.finfo(left_BNV.dtype).tiny)


def chances(seed: int, batch: Batch, nodes: int) -> torch.Tensor:
    """Return a random number in (0, 1) for each node of a tree, used in this round only, (B, N)."""
    nodes_N = torch.arange(nodes, device=batch.lengths_B.device)
    return uniform(seed, hash_parts(of_this_round(batch)[:, None], nodes_N), batch.lengths_B[:, None], Stream.ACCEPT)


def normal(weights_BV: torch.Tensor, otherwise_BV: torch.Tensor) -> torch.Tensor:
    """Return the positive parts of weights as a distribution, (B, V); ``otherwise_BV`` where rounding leaves none."""
    weights_BV = weights_BV.clamp(min=0)
    sum_B1 = weights_BV.sum(-1, keepdim=True)
    return (weights_BV / sum_B1).where(sum_B1 > 0, otherwise_BV)


def at(seed: int, batch: Batch, draft: Draft, node_B: torch.Tensor, weights_BV: torch.Tensor) -> Acceptance:
    """Return the path to a node, -1 for none, followed by a token sampled with ``weights_BV``."""
    accepted_B = F.pad(depths(draft), (1, 0)).gather(1, node_B[:, None] + 1)[:, 0]
    node_B11 = node_B.clamp(min=0)[:, None, None].expand(-1, -1, draft.depth)
    path_BK = ancestors(draft).gather(1, node_B11)[:, 0]
    return acceptance(seed, batch, draft, accepted_B, weights_BV, path_BK)


def residual(
    draft: Draft,
    accepted_B: torch.Tensor,
    target_BTV: torch.Tensor,
    draft_BKV: torch.Tensor,
    scale_B: torch.Tensor,
) -> torch.Tensor:
    """Return the weights for sampling the token after the accepted tokens of a chain, (B, V).

    After a rejection the weights are max(0, scale * p - q). They are p if the whole draft is accepted, if q is no distribution, or
    if rounding makes all differences 0.
    """
    rows = torch.arange(len(accepted_B), device=accepted_B.device)
    target_BV = target_BTV[rows, accepted_B]
    padded = F.pad(draft_BKV, (0, 0, 0, 1))
    weights_BV = (scale_B[:, None] * target_BV - padded[rows, accepted_B]).clamp_(min=0)
    remains_B1 = weights_BV.sum(-1, keepdim=True) > 0  # nan is not
    if draft.counts_B is not None:
        remains_B1 &= (accepted_B < draft.counts_B)[:, None]
    return torch.where(remains_B1, weights_BV, target_BV)


def acceptance(
    seed: int,
    batch: Batch,
    draft: Draft,
    accepted_B: torch.Tensor,
    weights_BV: torch.Tensor,
    path_BK: torch.Tensor | None = None,
) -> Acceptance:
    """Return the accepted tokens, of a chain or along a path, followed by a token sampled with ``weights_BV``."""
    positions_B = batch.lengths_B + accepted_B
    noise_BV = gumbel(seed, batch.streams_B, positions_B, Stream.TARGET, weights_BV.shape[-1])
    drawn_B = (weights_BV.log() + noise_BV).argmax(-1)
    tokens_BK = draft.tokens_BN if path_BK is None else draft.tokens_BN.gather(1, path_BK)
    tokens_BT = F.pad(tokens_BK, (0, 1)).scatter(1, accepted_B[:, None], drawn_B[:, None])
    return Acceptance(accepted_B, tokens_BT, path_BK)
