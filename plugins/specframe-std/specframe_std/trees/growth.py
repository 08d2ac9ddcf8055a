"""Growing a draft tree level by level: the shape is fixed (static) or follows the drafter's own probabilities (dynamic).

A drafter gives the scores after the row's last token and a function that runs one level; everything else is here. Tensor names
carry their shape: B rows, N nodes of the draft, F nodes whose children are chosen together, C children of each, L nodes of a level,
M nodes fed to the drafter so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch

from specframe.contracts.drafts import Budget, Draft
from specframe.devices.kinds import on_device
from specframe_std.trees import paths
from specframe_std.trees.shapes import Shape, tables


@attrs.frozen(eq=False)
class Frontier:
    """Nodes whose children come next, and all nodes that were fed before them in this round."""

    tokens_BM: torch.Tensor
    """The tokens fed in this round after the row's last token, those of this level last."""
    parents_BM: torch.Tensor
    """The place of each one's parent among them, -1: the row's last token; (B, M), or (1, M) where all rows are alike."""
    width: int
    """Nodes of this level, F."""
    depth: int
    """Their depth; 1: children of the row's last token."""
    above_BF: torch.Tensor
    """For each node of this level, its parent's index in the frontier before, 0 at depth 1, (B, F) or (1, F)."""


Run = Callable[[Frontier], torch.Tensor]
"""Returns the scores after each node of a frontier, (B, F, V), shaped by the rows' processors."""
Choose = Callable[[int, torch.Tensor, int], "Children"]
"""Chooses children: (offset of the children after each row's end, scores (B, F, V), their number C)."""


@attrs.frozen(eq=False)
class Children:
    """The children chosen for the nodes of a frontier."""

    tokens_BFC: torch.Tensor
    """The tokens, the most likely or the first drawn first."""
    scores_BFC: torch.Tensor
    """The logarithm of the probability that each is right, as far as the drafter knows."""
    logits_BFCV: torch.Tensor | None = None
    """The logits that each was drawn by, (B, F, 1, V) where they are the same for all children, or None if they were not drawn."""


@attrs.frozen(eq=False)
class Grown:
    """A tree, and the places of its nodes in the drafter's cache."""

    draft: Draft
    fed_BN: torch.Tensor
    """The place of each node among the tokens fed after the row's last, or 0 for a node that was not fed, which has no children."""


def static(shape: Shape, budget: Budget, logits_B1V: torch.Tensor, run: Run, choose: Choose) -> Grown:
    """Grow a tree of a given shape.

    Args:
        shape: the tree, within the budget.
        budget: says how much of it each row has.
        logits_B1V: the scores after each row's last token.
        run: runs the nodes of a level that have children.
        choose: chooses the children of a level's nodes.
    """
    put = tables(shape, logits_B1V.device)
    tokens, logits, fed = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
    logits_BFV, count = logits_B1V, 0
    for depth, level in enumerate(shape.levels):
        drawn = choose(depth, logits_BFV, level.children)
        tokens_BL = drawn.tokens_BFC.flatten(1)[:, put.drawn[depth]]
        tokens.append(tokens_BL)
        if drawn.logits_BFCV is not None:
            logits.append(_of(drawn.logits_BFCV, put.parents[depth], put.drawn[depth]))
        if level.inner:
            fed.append(tokens_BL[:, put.inner[depth]])
            count += len(level.inner)
            before_1M = put.fed_parents_1M[:, :count]
            logits_BFV = run(Frontier(torch.cat(fed, dim=1), before_1M, len(level.inner), depth + 1, put.above[depth]))
    logits_BNV = torch.cat(logits, dim=1) if logits else None
    tokens_BN = torch.cat(tokens, dim=1)
    draft = Draft(tokens_BN, logits_BNV, put.parents_1N, depth=shape.depth)
    grown = Grown(draft, put.fed_1N.expand(len(tokens_BN), -1))
    return best_first(grown, put.promise_1N, budget) if is_uneven(budget) else grown


def is_uneven(budget: Budget) -> bool:
    """Return whether some row has a part of the tree."""
    depths_B, nodes_B = budget.depths_B, budget.nodes_B
    if depths_B is None or nodes_B is None:
        return False
    return bool(((nodes_B > 0) & ((depths_B < budget.depth) | (nodes_B < budget.nodes))).any())


def best_first(grown: Grown, worth_BN: torch.Tensor, budget: Budget) -> Grown:
    """Put the nodes first that each row's own budget has: the likeliest ones that are not too deep, in their order.

    Args:
        grown: a tree with nodes in the order of their depth.
        worth_BN: how likely they are accepted, a node no more than its parent; (B, N), or (1, N) where all rows are alike.
        budget: an :func:`is_uneven` one.
    """
    draft = grown.draft
    parents_BN, device = draft.above_BN, draft.tokens_BN.device
    depths_B1, nodes_B1 = on_device([budget.depths_B, budget.nodes_B], device)[..., None]
    worth_BN = worth_BN.where(paths.depths(draft) <= depths_B1, float("-inf"))
    rank_BN = by_score(worth_BN).argsort(1)
    index_BN = (rank_BN >= nodes_B1).long().sort(dim=1, stable=True).indices
    place_BN = index_BN.argsort(1)
    parents_BN = parents_BN.gather(1, index_BN)
    parents_BN = place_BN.gather(1, parents_BN.clamp(min=0)).where(parents_BN >= 0, parents_BN)
    logits_BNV = draft.logits_BNV
    if logits_BNV is not None:
        logits_BNV = logits_BNV.gather(1, index_BN[..., None].expand_as(logits_BNV))
    tokens_BN = draft.tokens_BN.gather(1, index_BN)
    return Grown(Draft(tokens_BN, logits_BNV, parents_BN, depth=draft.depth), grown.fed_BN.gather(1, index_BN))


def dynamic(budget: Budget, top: int, logits_B1V: torch.Tensor, run: Run, choose: Choose) -> Grown:
    """Grow the tree of EAGLE-2 (Li et al. 2024): expand the likeliest nodes of each level, then keep the likeliest of all.

    A node's probability is the product of those along its path. Each level runs its ``top`` likeliest nodes, and ``top``
    children of each are candidates. Of all candidates ``budget.nodes`` are kept; among equals the earlier ones, so that parents
    are always in.
    """
    found, edge = Candidates(logits_B1V), Edge.root(logits_B1V)
    for depth in range(budget.depth):
        drawn = choose(depth, edge.logits_BFV, min(top, edge.logits_BFV.shape[-1]))
        scores_BL = found.add(edge, drawn)
        if depth + 1 < budget.depth:
            edge = found.expand(edge, scores_BL, top, drawn.tokens_BFC.shape[2], depth + 1, run)
    return found.best(budget)


@attrs.frozen(eq=False)
class Edge:
    """The nodes of a dynamic tree whose children come next."""

    logits_BFV: torch.Tensor
    scores_BF: torch.Tensor
    """The logarithm of each node's probability."""
    candidates_BF: torch.Tensor
    """Their indices among all candidates; -1: the row's last token."""
    places_BF: torch.Tensor
    """Their places among the tokens fed; -1: the row's last token."""

    @classmethod
    def root(cls, logits_B1V: torch.Tensor) -> Edge:
        """Return the row's last token, which is certain."""
        last_B1 = torch.full(logits_B1V.shape[:2], -1, device=logits_B1V.device)
        return cls(logits_B1V, torch.zeros(last_B1.shape, device=last_B1.device), last_B1, last_B1)


class Candidates:
    """All nodes that a dynamic tree may have, in the order in which they came up."""

    def __init__(self, logits_B1V: torch.Tensor) -> None:
        self._tokens, self._scores, self._parents, self._places = [list[torch.Tensor]() for _ in range(4)]
        self._fed_BM = self._fed_parents_BM = torch.empty(
            len(logits_B1V), 0, dtype=torch.long, device=logits_B1V.device
        )

    @property
    def count(self) -> int:
        """The number of candidates."""
        return sum(tokens_BL.shape[1] for tokens_BL in self._tokens)

    def add(self, edge: Edge, drawn: Children) -> torch.Tensor:
        """Take the children of a level's nodes; return their scores, (B, L)."""
        scores_BL = (edge.scores_BF[..., None] + drawn.scores_BFC).flatten(1)
        scores_BL = scores_BL.where(scores_BL == scores_BL, float("-inf"))  # nan would sort before the parents
        self._tokens.append(drawn.tokens_BFC.flatten(1))
        self._scores.append(scores_BL)
        self._parents.append(edge.candidates_BF.repeat_interleave(drawn.tokens_BFC.shape[2], dim=1))
        self._places.append(torch.zeros_like(self._tokens[-1]))
        return scores_BL

    def expand(self, edge: Edge, scores_BL: torch.Tensor, top: int, children: int, depth: int, run: Run) -> Edge:
        """Run the likeliest nodes of the level taken last."""
        best_BF = by_score(scores_BL)[:, :top]
        above_BF, first = best_BF // children, self.count - scores_BL.shape[1]
        start, width = self._fed_BM.shape[1], best_BF.shape[1]
        places_BF = torch.arange(start, start + width, device=best_BF.device).expand(len(best_BF), -1)
        self._places[-1].scatter_(1, best_BF, places_BF)
        self._fed_BM = torch.cat([self._fed_BM, self._tokens[-1].gather(1, best_BF)], dim=1)
        self._fed_parents_BM = torch.cat([self._fed_parents_BM, edge.places_BF.gather(1, above_BF)], dim=1)
        logits_BFV = run(Frontier(self._fed_BM, self._fed_parents_BM, width, depth, above_BF))
        return Edge(logits_BFV, scores_BL.gather(1, best_BF), first + best_BF, places_BF)

    def best(self, budget: Budget) -> Grown:
        """Return the tree of the likeliest candidates, in the order in which they came up."""
        tokens_BN, scores_BN, parents_BN, places_BN = [
            torch.cat(parts, dim=1) for parts in (self._tokens, self._scores, self._parents, self._places)
        ]
        kept_BN = by_score(scores_BN)[:, : budget.nodes].sort(1).values
        renamed_BN = torch.zeros_like(tokens_BN).scatter_(
            1, kept_BN, torch.arange(kept_BN.shape[1], device=kept_BN.device).expand_as(kept_BN)
        )
        parents_BN = parents_BN.gather(1, kept_BN)
        parents_BN = renamed_BN.gather(1, parents_BN.clamp(min=0)).where(parents_BN >= 0, parents_BN)
        draft = Draft(tokens_BN.gather(1, kept_BN), parents_BN=parents_BN, depth=min(budget.depth, kept_BN.shape[1]))
        grown = Grown(draft, places_BN.gather(1, kept_BN))
        return best_first(grown, scores_BN.gather(1, kept_BN), budget) if is_uneven(budget) else grown


def by_score(scores_BL: torch.Tensor) -> torch.Tensor:
    """Return indices from the greatest score to the least, equal ones in their order."""
    return scores_BL.sort(dim=1, descending=True, stable=True).indices


def _of(logits_BFCV: torch.Tensor, parents_L: torch.Tensor, drawn_L: torch.Tensor) -> torch.Tensor:
    """Return the logits that each node of a level was drawn by, (B, L, V)."""
    if logits_BFCV.shape[2] == 1:
        return logits_BFCV[:, parents_L, 0]
    return logits_BFCV.flatten(1, 2)[:, drawn_L]
