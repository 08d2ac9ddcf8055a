"""Traversal verification (2025, arXiv 2505.12398): decide on a tree from its leaves up."""

from __future__ import annotations

import torch

from specframe.contracts.drafts import Acceptance, Draft, Scores
from specframe.contracts.round import Batch
from specframe_std.acceptance.block import BlockVerification
from specframe_std.acceptance.rejection import Rejection, at, chances, meant, normal
from specframe_std.trees.paths import ancestors, bottom_up, depths


class Traversal(BlockVerification):
    """Accepts a path of a tree as a whole, from the leaves up: lossless, and more tokens than ``rejection``. Chains as ``block``.

    A node's weight is a = min(1, a_parent * P(x) / Q(x)), 1 for the row's last token. Nodes are tested from the leaves up, and a
    node with its path is accepted with probability a. One that is not leaves its parent u with P_u = norm(max(0, a_u P_u - Q)) and
    a_u = S / (S + 1 - a_u), where S is the sum of max(0, a_u P_u - Q). A node whose Q is no distribution (a logit is nan or
    infinity), and padding, leaves both as they are.

    Options:
        siblings: how the children of a node are drawn: "distinct", without replacement; "independent", with replacement; "likely":
            not drawn, the most likely tokens are taken, and a dynamic tree may choose among them.
    """

    offers = frozenset({"lossless", "samples", "tree", "distinct"})

    def __init__(self, siblings: str = "distinct") -> None:
        Rejection.__init__(self, siblings)

    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        """Return the first path that is accepted, and a sample from what is then left of the target's distribution."""
        if draft.parents_BN is None:
            return super().accept(batch, draft, scores)
        target_BTV = scores.logits_BTV.float().softmax(-1)
        sweep = Sweep(draft, target_BTV, self._proposals(draft, target_BTV.shape[-1]))
        chances_BN = chances(self._seed, batch, draft.nodes)
        for step in range(draft.nodes):
            sweep.take(step, chances_BN)
        return at(self._seed, batch, draft, sweep.node_B, sweep.left_BV)


class Sweep:
    """One pass over the nodes of all rows' trees, from the leaves up.

    A *place* is 0 for the row's last token and n + 1 for node n; P places.
    """

    def __init__(self, draft: Draft, target_BTV: torch.Tensor, draft_BNV: torch.Tensor) -> None:
        self._tokens_BN, self._draft_BNV, self._left_BPV = draft.tokens_BN, draft_BNV, target_BTV.clone()
        self._meant_BN = meant(draft)
        self._index_BN, self._begins_BN = bottom_up(draft)
        self._parents_BN, self._depths_BN, self._paths_BNK = draft.above_BN, depths(draft), ancestors(draft)
        rows, nodes = draft.tokens_BN.shape
        self._rows_B = torch.arange(rows, device=target_BTV.device)
        self._places_K = torch.arange(draft.depth, device=target_BTV.device)
        q_BN = draft_BNV.gather(2, draft.tokens_BN[..., None])[..., 0]
        drawn_BN = q_BN > 0 if self._meant_BN is None else (q_BN > 0) & self._meant_BN
        self._inverse_BN = torch.where(drawn_BN, 1 / q_BN, 0)  # a token that no probability is left for is not accepted
        self._weights_BP = torch.ones(rows, nodes + 2, device=target_BTV.device)
        """The weight a of each place; the last column takes what is not to be kept."""
        self.node_B = torch.full((rows,), -1, device=target_BTV.device)
        """The last node of the accepted path; -1: none so far."""

    @property
    def left_BV(self) -> torch.Tensor:
        """The distribution of the token after the accepted path."""
        return self._left_BPV[self._rows_B, self.node_B + 1]

    def take(self, step: int, chances_BN: torch.Tensor) -> None:
        """Test the next node of every row that has not accepted one."""
        node_B1 = self._index_BN[:, step : step + 1]
        self._enter(step, node_B1)
        open_B, weight_B1 = self.node_B < 0, self._weights_BP.gather(1, node_B1 + 1)
        stands_B = open_B & (chances_BN.gather(1, node_B1) < weight_B1)[:, 0]
        self.node_B = node_B1[:, 0].where(stands_B, self.node_B)
        rejected_B = open_B & ~stands_B
        if self._meant_BN is not None:
            rejected_B &= self._meant_BN.gather(1, node_B1)[:, 0]
        self._reject(node_B1[:, 0], rejected_B)

    def _enter(self, step: int, node_B1: torch.Tensor) -> None:
        """Weigh the nodes on a node's path whose subtrees begin here."""
        path_BK = self._paths_BNK[self._rows_B, node_B1[:, 0]]
        places_BK = self._parents_BN.gather(1, path_BK) + 1
        p_BK = self._left_BPV[self._rows_B[:, None], places_BK, self._tokens_BN.gather(1, path_BK)]
        ratios_BK = p_BK * self._inverse_BN.gather(1, path_BK)
        begins_BK = (self._begins_BN.gather(1, path_BK) == step) & (self._places_K < self._depths_BN.gather(1, node_B1))
        own_BK = (path_BK + 1).where(begins_BK, self._weights_BP.shape[1] - 1)
        for depth in range(path_BK.shape[1]):
            here = slice(depth, depth + 1)
            weight_B1 = (self._weights_BP.gather(1, places_BK[:, here]) * ratios_BK[:, here]).clamp(max=1)
            self._weights_BP.scatter_(1, own_BK[:, here], weight_B1)

    def _reject(self, node_B: torch.Tensor, rejected_B: torch.Tensor) -> None:
        """Take the nodes' share from what is left at their parents."""
        place_B = self._parents_BN[self._rows_B, node_B] + 1
        left_BV, weight_B = self._left_BPV[self._rows_B, place_B], self._weights_BP[self._rows_B, place_B]
        less_BV = (weight_B[:, None] * left_BV - self._draft_BNV[self._rows_B, node_B]).clamp(min=0)
        sum_B = less_BV.sum(-1)
        self._left_BPV[self._rows_B, place_B] = normal(less_BV, left_BV).where(rejected_B[:, None], left_BV)
        less_B = sum_B / (sum_B + 1 - weight_B)
        # nan where Q is no distribution, and where 0 of a weight of 1 is left, which it keeps
        sound_B = less_B == less_B
        self._weights_BP[self._rows_B, place_B] = less_B.where(rejected_B & sound_B, weight_B)
