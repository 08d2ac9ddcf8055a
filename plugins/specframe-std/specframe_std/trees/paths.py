"""Paths through draft trees, for acceptance rules.

Tensor names carry their shape: B rows, N nodes, K nodes of the longest path. A *place* is where the target's scores are: 0 after
the row's last token, n + 1 after node n.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from specframe.contracts.drafts import Acceptance, Block, Draft


def walk(draft: Draft, choice: Callable[[int, torch.Tensor], torch.Tensor]) -> Acceptance:
    """Go from the row's last token to the child that is the target's choice, as long as there is one.

    Args:
        draft: a tree.
        choice: returns the target's choice, (B, 1), after a number of accepted tokens, at the places (B, 1).
    """
    above_BN = draft.above_BN
    place_B1 = torch.zeros_like(draft.tokens_BN[:, :1])
    stands_B1 = torch.ones_like(place_B1, dtype=torch.bool)
    path, tokens, accepted_B1 = [], [], torch.zeros_like(place_B1)
    for depth in range(draft.depth):
        tokens.append(choice(depth, place_B1))
        agrees_BN = (above_BN == place_B1 - 1) & (draft.tokens_BN == tokens[-1])
        node_B1 = agrees_BN.long().argmax(1, keepdim=True)
        stands_B1 = stands_B1 & agrees_BN.any(1, keepdim=True)
        place_B1 = (node_B1 + 1).where(stands_B1, place_B1)
        path.append(node_B1)
        accepted_B1 = accepted_B1 + stands_B1
    tokens.append(choice(draft.depth, place_B1))
    return Acceptance(accepted_B1[:, 0], torch.cat(tokens, dim=1), torch.cat(path, dim=1))


def deepest(draft: Draft, stands_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of nodes of the longest path of accepted nodes, (B,), and its nodes, (B, K).

    Among paths of one length the one whose last node comes first. The first nodes mean something, as many as there are.
    """
    upward_BNK = upward(draft).expand(len(stands_BN), -1, -1)
    whole_BNK = F.pad(stands_BN, (1, 0), value=True).gather(1, upward_BNK.flatten(1)).view_as(upward_BNK)
    accepted_B1, node_B1 = (depths(draft) * whole_BNK.all(2)).max(1, keepdim=True)
    return accepted_B1[:, 0], ancestors(draft).gather(1, node_B1[..., None].expand(-1, -1, draft.depth))[:, 0]


def upward(draft: Draft) -> torch.Tensor:
    """Return the places on the path from each node up to the row's last token, the node's own first, (B, N, K) or (1, N, K)."""
    parents_BN = draft.above_BN if draft.parents_BN is None else draft.parents_BN
    above_BP = F.pad(parents_BN + 1, (1, 0))  # the row's last token is its own parent
    path = [torch.arange(1, draft.nodes + 1, device=above_BP.device).expand_as(parents_BN)]
    for _ in range(draft.depth - 1):
        path.append(above_BP.gather(1, path[-1]))
    return torch.stack(path, dim=2)


def depths(draft: Draft) -> torch.Tensor:
    """Return the number of nodes on the path to each node, itself included, (B, N)."""
    return (upward(draft) > 0).sum(2).expand_as(draft.tokens_BN)


def ancestors(draft: Draft) -> torch.Tensor:
    """Return the nodes on the path to each node, from the first down to itself, (B, N, K), 0 after them."""
    upward_BNK = upward(draft)
    last_BN1 = (upward_BNK > 0).sum(2, keepdim=True) - 1
    steps_BNK = last_BN1 - torch.arange(draft.depth, device=last_BN1.device)
    paths_BNK = upward_BNK.gather(2, steps_BNK.clamp(min=0)) - 1
    return paths_BNK.where(steps_BNK >= 0, 0).expand(len(draft.tokens_BN), -1, -1)


def place_after(path_BK: torch.Tensor, accepted_B: torch.Tensor) -> torch.Tensor:
    """Return the place after ``accepted_B`` nodes of a path, (B,)."""
    return F.pad(path_BK + 1, (1, 0)).gather(1, accepted_B[:, None])[:, 0]


def elders(draft: Draft) -> torch.Tensor:
    """Return whether a node is an earlier sibling (last axis) of a node, (B, N, N)."""
    above_BN = draft.above_BN
    same_BNN = above_BN[:, :, None] == above_BN[:, None]
    return same_BNN.tril(-1)


def bottom_up(draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nodes so that each comes after its children, and siblings and their descendants keep the order of siblings.

    Returns:
        The nodes in that order, (B, N), and for each node the step at which the first node of its subtree comes up, (B, N).
    """
    sees_BNN = Block(draft.tokens_BN, 0, draft.above_BN).sees_BTT
    assert sees_BNN is not None
    paths_BNN = sees_BNN.double()  # products of whole numbers are exact
    size_BN, depth_BN = paths_BNN.sum(1), paths_BNN.sum(2)
    skipped_BN = 1 + (elders(draft).double() @ size_BN[..., None])[..., 0]
    first_BN = (paths_BNN @ skipped_BN[..., None])[..., 0] - 1  # place in the order of parents before children
    step_BN = (first_BN + size_BN - depth_BN).long()
    return step_BN.argsort(1), step_BN - size_BN.long() + 1
