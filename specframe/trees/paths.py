"""Paths through draft trees, for acceptance rules.

Tensor names carry their shape: B rows, N nodes, K nodes of the longest path. A *place* is where the target's scores are: 0 after
the row's last token, n + 1 after node n.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from specframe.contracts.drafts import Block, Draft, Verdict


def parents(draft: Draft) -> torch.Tensor:
    """Return the node that each node follows, -1 for the row's last token, (B, N), also of a chain."""
    if draft.parents_BN is not None:
        return draft.parents_BN.expand_as(draft.tokens_BN)
    return torch.arange(-1, draft.nodes - 1, device=draft.tokens_BN.device).expand_as(draft.tokens_BN)


def walk(draft: Draft, choice: Callable[[int, torch.Tensor], torch.Tensor]) -> Verdict:
    """Go from the row's last token to the child that is the target's choice, as long as there is one.

    Args:
        draft: a tree.
        choice: returns the target's choice, (B, 1), after so many accepted tokens, at the places (B, 1).
    """
    parents_BN = parents(draft)
    place_B1 = torch.zeros_like(draft.tokens_BN[:, :1])
    stands_B1 = torch.ones_like(place_B1, dtype=torch.bool)
    path, tokens, accepted_B1 = [], [], torch.zeros_like(place_B1)
    for depth in range(draft.depth):
        tokens.append(choice(depth, place_B1))
        agrees_BN = (parents_BN == place_B1 - 1) & (draft.tokens_BN == tokens[-1])
        node_B1 = agrees_BN.long().argmax(1, keepdim=True)
        stands_B1 = stands_B1 & agrees_BN.any(1, keepdim=True)
        place_B1 = (node_B1 + 1).where(stands_B1, place_B1)
        path.append(node_B1)
        accepted_B1 = accepted_B1 + stands_B1
    tokens.append(choice(draft.depth, place_B1))
    return Verdict(accepted_B1[:, 0], torch.cat(tokens, dim=1), torch.cat(path, dim=1))


def deepest(draft: Draft, stands_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of nodes of the longest path on which every node stands, (B,), and its nodes, (B, K).

    Among paths of one length the one whose last node comes first. The first nodes mean something, as many as there are.
    """
    parents_BN = parents(draft)
    whole_BN = stands_BN
    for _ in range(draft.depth - 1):
        whole_BN = stands_BN & parent_values(whole_BN, parents_BN, True)
    accepted_B1, node_B1 = (depths(draft) * whole_BN).max(1, keepdim=True)
    return accepted_B1[:, 0], ancestors(draft).gather(1, node_B1[..., None].expand(-1, -1, draft.depth))[:, 0]


def depths(draft: Draft) -> torch.Tensor:
    """Return the number of nodes on the path to each node, itself included, (B, N)."""
    parents_BN = parents(draft)
    depth_BN = torch.ones_like(parents_BN)
    for _ in range(draft.depth - 1):
        depth_BN = 1 + parent_values(depth_BN, parents_BN, 0)
    return depth_BN


def ancestors(draft: Draft) -> torch.Tensor:
    """Return the nodes on the path to each node, from the first down to itself, (B, N, K); 0 after them."""
    parents_BN, depth_BN = parents(draft), depths(draft)
    here_BN = torch.arange(draft.nodes, device=parents_BN.device).expand_as(parents_BN)
    spare = draft.depth  # what lies above the first node goes there
    paths_BNK = torch.zeros(*parents_BN.shape, spare + 1, dtype=torch.long, device=parents_BN.device)
    for step in range(draft.depth):
        places_BN = (depth_BN - 1 - step).where(here_BN >= 0, spare)
        paths_BNK.scatter_(2, places_BN[..., None], here_BN.clamp(min=0)[..., None])
        here_BN = parents_BN.gather(1, here_BN.clamp(min=0)).where(here_BN >= 0, here_BN)
    return paths_BNK[..., :spare]


def place_after(path_BK: torch.Tensor, accepted_B: torch.Tensor) -> torch.Tensor:
    """Return the place after so many nodes of a path, (B,)."""
    return F.pad(path_BK + 1, (1, 0)).gather(1, accepted_B[:, None])[:, 0]


def parent_values(values_BN: torch.Tensor, parents_BN: torch.Tensor, root: float) -> torch.Tensor:
    """Return each node's parent's value, and ``root`` for children of the row's last token."""
    return F.pad(values_BN, (1, 0), value=root).gather(1, parents_BN + 1)


def elders(draft: Draft) -> torch.Tensor:
    """Return whether a node is an earlier sibling (last axis) of a node, (B, N, N)."""
    parents_BN = parents(draft)
    same_BNN = parents_BN[:, :, None] == parents_BN[:, None]
    return same_BNN.tril(-1)


def bottom_up(draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nodes so that each comes after its children, and siblings and their descendants keep the order of siblings.

    Returns:
        The nodes in that order, (B, N), and for each node the step at which the first node of its subtree comes up, (B, N).
    """
    sees_BNN = Block(draft.tokens_BN, 0, parents(draft)).sees_BTT
    assert sees_BNN is not None
    paths_BNN = sees_BNN.double()  # products of whole numbers are exact
    size_BN, depth_BN = paths_BNN.sum(1), paths_BNN.sum(2)
    skipped_BN = 1 + (elders(draft).double() @ size_BN[..., None])[..., 0]
    first_BN = (paths_BNN @ skipped_BN[..., None])[..., 0] - 1  # place in the order of parents before children
    step_BN = (first_BN + size_BN - depth_BN).long()
    return step_BN.argsort(1), step_BN - size_BN.long() + 1
