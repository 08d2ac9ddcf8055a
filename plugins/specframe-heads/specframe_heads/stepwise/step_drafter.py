"""Drafters whose heads predict one place after the other: Medusa, Hydra, Clover and Clover-2."""

from __future__ import annotations

import attrs

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.round import Batch
from specframe.model.run import Run
from specframe_heads.features import FeatureChunk, Waiting
from specframe_heads.head import HeadDrafter, PairDrafter, nothing
from specframe_heads.place_by_place import drawn
from specframe_heads.stepwise.step_head import StepHead


class StepDrafter(PairDrafter):
    """Base of the four. The first state comes from features of the target, each further one from the state before and a token.

    What follows the first state needs no cache: a tree costs its nodes and no more.

    Options:
        checkpoint: the head: an alias, a directory or a hub id.
        shift: added to the number of the hidden state that the head is fed, for finding out whether a file is read rightly.
        tree: "chain"; "static": a tree of a fixed shape; "dynamic": a tree whose shape follows the head's probabilities.
        branch: the static tree: the children of the nodes of each depth, as in 3/2/1, or a JSON file with a list of rank lists
            (Medusa's ``medusa_choices``); without it the likeliest nodes are taken.
        nodes: nodes of the tree; 16, or those of branch.
        top: nodes that each level of a dynamic tree runs, and children of each; as many as its
            nodes have room for, up to 10.
    """

    head: StepHead  # type: ignore[assignment]
    chains_offer = frozenset({"captured"})

    def start(self, run: Run) -> None:
        """Make the head; open a cache where it has layers."""
        HeadDrafter.start(self, run)
        self._layered = self.head.backbone is not None
        if self._layered:
            self.open()

    def follow(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of the cache, if there is one."""
        if self._layered:
            super().follow(batch)

    def read(self, piece: FeatureChunk) -> None:
        """Read a prefill chunk where the head has layers."""
        if self._layered:
            super().read(piece)

    def draft(self, batch: Batch, waiting: Waiting, budget: Budget) -> Draft:
        """Return a chain or a tree, no deeper than the head has places."""
        states_B1D = self.caught_up(batch, waiting) if self._layered else waiting.last(waiting.features_BWD)
        depth = min(budget.depth, self.head.steps.count)
        if depth == 0:
            return nothing(batch)
        return drawn(self, batch, attrs.evolve(budget, depth=depth), self.head.steps.step, states_B1D)


class MedusaDrafter(StepDrafter):
    """Medusa's heads, each of which predicts one place from the same feature, draft a tree of their likeliest tokens."""

    name = "medusa"

    def __init__(
        self,
        checkpoint: str,
        shift: int = 0,
        tree: str = "static",
        branch: str | int | None = None,
        nodes: int | None = None,
        top: int | None = None,
    ) -> None:
        super().__init__(checkpoint, shift, tree, branch, nodes, top)


class HydraDrafter(StepDrafter):
    """Hydra's heads read the tokens before their own; of Hydra++ the feature goes through a layer with a cache first."""

    name = "hydra"


class CloverDrafter(StepDrafter):
    """Clover's recurrent state takes in the draft's tokens, after one transformer layer over the features."""

    name = "clover"


class Clover2Drafter(StepDrafter):
    """Clover-2's recurrent state takes in the draft's tokens by cosine gates, after two transformer layers."""

    name = "clover2"
