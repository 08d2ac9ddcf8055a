"""The budget of a round, as far as each row can use it, and drafts cut to it: a drafter that passes over its budget changes no
token, so that no comparison of tokens would notice.

Tensor names carry their shape: B rows, N nodes of a draft.
"""

from __future__ import annotations

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Block, Budget, Draft
from specframe.contracts.roles import Alignment
from specframe.contracts.round import Batch
from specframe.devices import kinds
from specframe.devices.kinds import on_device
from specframe.model.padding_free import PADDING_FREE_PAYS
from specframe.plugins.compose import Composition

NOTHING = Budget(0)
"""The budget of rounds that draft nothing."""


def usable(budget: Budget, batch: Batch, use: Composition) -> Budget:
    """Return what the rows of a batch can use of a policy's budget, each for itself.

    Args:
        budget: as the policy gave it. Where rows have to gain the same number of tokens, chains are as long as they are on average.
        batch: rows that decode.
        use: the strategies. Budgets follow the lengths of rows where the rule's output does not depend on drafts, and each row's
            its own length where the alignment lets rows gain unequal numbers of tokens.

    Returns:
        A budget with as much depth and as many nodes as some row has, both for each row where they differ.
    """
    if not (budget.depth or budget.nodes):
        return NOTHING
    if budget.depths_B is not None and budget.nodes == budget.depth and "uneven" not in use.alignment.offers:
        budget = evened(budget, budget.depths_B)
    if "draft-invariant" in use.rule.offers:
        budget = within_reach(budget, batch, use.alignment)
    plain = [not sequence.request.speculate for sequence in batch.sequences]
    if any(plain):
        budget = limit_depths(budget, np.where(plain, 0, budget.depth))
    return tight(budget)


def within_reach(budget: Budget, batch: Batch, alignment: Alignment) -> Budget:
    """Return the budget without the tokens that rows near their ends cannot gain.

    The draft is no longer than the row with the most tokens to come can use. A row nearer its end shortens nobody else's draft. It
    gets less itself, if the alignment lets it, where what such rows cannot use is so much padding that forwards leave it out, and
    the device is one whose forwards of few tokens are faster for that.
    """
    rooms = (room_B := batch.limits - batch.least).tolist()
    if min(rooms) > budget.depth:
        return budget
    reach, chain = max(rooms) - 1, budget.nodes == budget.depth
    if reach < budget.depth:
        budget = attrs.evolve(budget, depth=reach, nodes=min(budget.nodes, reach) if chain else budget.nodes)
    if "uneven" not in alignment.offers or kinds.of(batch.lengths_B.device).queues:
        return budget
    # of a tree the host does not know which nodes are too deep: rows that can use nothing are those that matter
    depths_B = np.minimum(room_B - 1, budget.depth) if chain else np.where(room_B > 1, budget.depth, 0)
    lost = (budget.depth - depths_B).sum() if chain else np.count_nonzero(depths_B == 0) * budget.nodes
    if lost < PADDING_FREE_PAYS * len(batch) * (budget.nodes + 1):
        return budget
    return limit_depths(budget, depths_B)


def evened(budget: Budget, depths_B: np.ndarray) -> Budget:
    """Return the budget of chains with the mean of the rows' depths for all: the row that drafts least holds back the others."""
    depth = round(float(np.minimum(depths_B, budget.depth).mean()))
    return attrs.evolve(budget, depth=depth, nodes=depth, depths_B=None, nodes_B=None)


def limit_depths(budget: Budget, depths_B: np.ndarray) -> Budget:
    """Return the budget with rows that draft no deeper than this."""
    own_B = budget.depths_B
    return attrs.evolve(budget, depths_B=depths_B if own_B is None else np.minimum(own_B, depths_B))


def tight(budget: Budget) -> Budget:
    """Return a budget with as much depth and as many nodes as some row has; without numbers per row where all have them."""
    if budget.depths_B is None and budget.nodes_B is None:
        return budget
    depths_B = budget.depth if budget.depths_B is None else np.minimum(budget.depths_B, budget.depth)
    nodes_B = budget.nodes if budget.nodes_B is None else np.minimum(budget.nodes_B, budget.nodes)
    nodes_B = np.where(depths_B > 0, nodes_B, 0)
    depths_B = np.minimum(depths_B, nodes_B)  # no path has more nodes than the draft
    if budget.nodes == budget.depth:
        nodes_B = depths_B
    depth, nodes = int(depths_B.max()), int(nodes_B.max())
    if (depths_B == depth).all() and (nodes_B == nodes).all():
        depths_B = nodes_B = None
    return attrs.evolve(budget, depth=depth, nodes=nodes, depths_B=depths_B, nodes_B=nodes_B)


def cut(draft: Draft, budget: Budget) -> Draft:
    """Return the draft with no more real nodes in a row than its budget has, counted on host and device where the host knows."""
    most_B, own_B = draft.counts, budget.depths_B if draft.parents_BN is None else budget.nodes_B
    if not draft.nodes or (own_B is None and (most_B is None or draft.counts_B is not None)):
        return draft
    if own_B is not None:
        most_B = np.minimum(own_B, draft.nodes if most_B is None else most_B)
    counts_B = on_device(most_B, draft.tokens_BN.device)
    if draft.counts_B is not None:
        counts_B = counts_B.minimum(draft.counts_B)
    depths_B = budget.depths_B
    if draft.parents_BN is not None and depths_B is not None and ((depths_B < draft.depth) & (depths_B > 0)).any():
        # some rows, but not all, may have nodes that are too deep
        counts_B = counts_B.minimum(shallow(draft, depths_B))
    return attrs.evolve(draft, counts=most_B, counts_B=counts_B)


def shallow(draft: Draft, depths_B: np.ndarray) -> torch.Tensor:
    """Return the number of nodes of each row before the first that lies deeper than this, (B,)."""
    depth_BN = Block(draft.tokens_BN, parents_BT=draft.parents_BN).depth_BT() + 1
    within_BN = depth_BN <= on_device(depths_B, depth_BN.device)[:, None]
    return within_BN.long().cumprod(1).sum(1)
