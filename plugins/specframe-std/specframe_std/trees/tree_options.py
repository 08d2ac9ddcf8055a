"""The trees that a drafter's options ask for."""

from __future__ import annotations

import torch

from specframe.contracts.drafts import Budget
from specframe.contracts.roles import AcceptanceRule
from specframe.contracts.round import Batch
from specframe.errors import OptionError, literal
from specframe.value_checks import whole
from specframe_std.trees import growth
from specframe_std.trees.children import by_rule
from specframe_std.trees.growth import Grown, Run
from specframe_std.trees.shapes import MOST_NODES, Shape

NEEDS = {
    "chain": frozenset[str](),
    "static": frozenset({"tree", "move"}),
    "dynamic": frozenset({"tree", "move", "prunable"}),
}
"""What each kind of tree asks of verifier, rule, alignment and store: the drafter's ``needs``."""
KINDS = tuple(NEEDS)
DEPTH, NODES = 5, 16
"""The depth and the nodes of a tree where they are left open: as deep as a chain is by default, and no more tokens than a target of
some billion parameters verifies about as fast as one."""
MOST_CHILDREN = 10
"""The most nodes that a level of a dynamic tree runs, and children that each gets: EAGLE-2's."""

WIDEST = 64
"""The most nodes that a level runs where that costs no forward. Each has as many children, and all of these are sorted."""


class Trees:
    """A drafter's trees: what the options ask for, and what that needs of other strategies.

    Args:
        tree: "chain"; "static": a fixed shape; "dynamic": the shape follows the drafter's probabilities in every round.
        branch: the static tree, see :meth:`Shape.read`, or None for the likeliest nodes.
        nodes: nodes of the tree, or None for those of ``branch``, or 16.
        top: nodes that each level of a dynamic tree runs, and children of each, or None for as many as its nodes have room for, up
            to 10.
        depth: depth where no draft length is given.
        wide: whether the nodes that levels run cost nothing: where ``top`` is left open there are as many as the tree has, up to
            64, so that none of the likeliest is missed.
    """

    def __init__(
        self,
        tree: str = "chain",
        branch: object = None,
        nodes: int | None = None,
        top: int | None = None,
        depth: int = DEPTH,
        wide: bool = False,
    ) -> None:
        if tree not in KINDS:
            raise OptionError(f"tree: expected {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {literal(tree)}")
        self.kind = "static" if tree == "chain" and branch is not None else tree
        for option, value, kind in (("branch", branch, "static"), ("top", top, "dynamic")):
            if value is not None and self.kind != kind:
                raise OptionError(
                    f"{option}: expected a {kind} tree with it, got a {self.kind}{' tree' * (self.kind != 'chain')}"
                )
        if nodes is not None and self.kind == "chain":
            raise OptionError("nodes: expected a static or dynamic tree with it, got a chain")
        self._shape = None if branch is None else Shape.read(branch)
        self._nodes = None if nodes is None else whole("nodes", nodes, 1, MOST_NODES)
        self._top = None if top is None else whole("top", top, 1)
        self._depth, self._wide = depth, wide
        self.needs = NEEDS[self.kind]
        self.offers = frozenset({"chain"} if self.chain else {"tree"})
        """The word that the drafter's ``offers`` take in."""

    @property
    def chain(self) -> bool:
        """Whether chains are asked for."""
        return self.kind == "chain"

    def budget(self, depth: int | None = None) -> Budget:
        """Return the budget for a draft length, or None if none was given."""
        if self._shape is not None:
            shape = self._shape if depth is None else self._shape.cut(depth)
            return Budget(shape.depth, min(shape.nodes, self._nodes or shape.nodes))
        depth = self._depth if depth is None else depth
        return Budget(depth) if self.chain else Budget(depth, max(depth, self._nodes or NODES))

    def shape(self, budget: Budget) -> Shape:
        """Return the static tree within a budget of at least one node."""
        if self.chain:
            return Shape.line(budget.depth)
        return self._shape.cut(budget.depth, budget.nodes) if self._shape else Shape.usual(budget.depth, budget.nodes)

    def spare(self, budget: Budget) -> int:
        """Return the slots of a row that the levels of a dynamic tree take beyond those of its nodes, where ``top`` was given."""
        if self._top is None or self.kind != "dynamic":
            return 0
        return max(0, self._top * (budget.depth - 1) - budget.nodes)

    def require_room(self, budget: Budget) -> None:
        """Raise :class:`OptionError` where the levels take more slots than the tree's nodes, for a drafter without others."""
        if self.spare(budget):
            raise OptionError(
                f"top: expected at most {max(1, budget.nodes // (budget.depth - 1))} for {budget.nodes} nodes and depth "
                f"{budget.depth}, since the nodes that all levels run lie in the slots of the tree's nodes, got {self._top}"
            )

    def top(self, budget: Budget, spare: int | None = 0) -> int:
        """Return the nodes that each level of a dynamic tree runs: all of them together have room in a draft's slots.

        Args:
            spare: slots of a row beyond those of the tree's nodes, or None for as many as are wanted.
        """
        if self._wide and self._top is None:
            return max(1, min(budget.nodes, WIDEST))
        most = MOST_CHILDREN if self._top is None else self._top
        if spare is None and self._top is not None:
            return most
        return max(1, min((budget.nodes + (spare or 0)) // max(1, budget.depth - 1), most))

    def grow(
        self,
        batch: Batch,
        budget: Budget,
        rule: AcceptanceRule,
        logits_B1V: torch.Tensor,
        run: Run,
        spare: int | None = 0,
    ) -> Grown:
        """Return a tree within a budget of at least one node, its nodes chosen as the acceptance rule asks.

        Args:
            logits_B1V: the scores after each row's last token, shaped by the row's processors.
            run: runs the nodes of one level, see :data:`specframe_std.trees.growth.Run`.
            spare: as for :meth:`top`.
        """
        choose = by_rule(rule, batch)
        if self.kind == "dynamic":
            return growth.dynamic(budget, self.top(budget, spare), logits_B1V, run, choose)
        return growth.static(self.shape(budget), budget, logits_B1V, run, choose)
