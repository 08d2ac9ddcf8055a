"""Self-speculation: a part of the target drafts, on the target's own cache."""

from __future__ import annotations

import abc

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.model import Model
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch, Kept
from specframe.errors import ModelError
from specframe.model.cached import CachedModel
from specframe.model.run import Run
from specframe.model.runner import ModelRunner
from specframe_std.drafters.draft_model import ModelDrafter


class SelfDrafter(ModelDrafter, abc.ABC):
    """A part of the target drafts, on the target's own cache: no prompt is read twice.

    What the part fed is forgotten before the target verifies it, which writes all layers of it anew. Layers that the part leaves
    out hold nothing of it until then, and nobody reads them.
    """

    needs: frozenset[str] = frozenset({"share"})

    def __init__(
        self, tree: str = "chain", branch: str | int | None = None, nodes: int | None = None, top: int | None = None
    ) -> None:
        super().__init__(tree, branch, nodes, top)
        self.needs = self.needs | type(self).needs
        self._width = 1
        self._runner: ModelRunner | None = None
        self._target: Model | None = None

    @abc.abstractmethod
    def part(self, target: Model) -> ModelRunner:
        """Return what drafts, made of the target's modules.

        Raises:
            ModelError: the target cannot be parted so.
        """

    def open(self, run: Run) -> CachedModel:
        """Return the part that drafts on the target's cache."""
        target = run.target.runner
        if self._runner is None or self._target is not target:
            self._runner, self._target = self.part(target), target
        return run.open_cache(self._runner, share=run.target)

    def observe(self, outcome: Outcome) -> None:
        """Do nothing: the target's cache is kept by the target."""

    def prepare(self, batch: Batch, budget: Budget) -> int | None:
        """Return how many tokens of each row are fed first: what was fed is forgotten."""
        return self._width if self._trees.chain else None

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return a draft within the budget, and leave the cache as the target left it."""
        draft = self.draw(batch, budget)
        if not budget.depth:
            return draft
        self._cache.commit(batch, Kept(-1))
        return draft


def require_one_device(target: Model, drafter: str) -> None:
    """Raise :class:`ModelError` where a target's layers are on several devices."""
    if any(shape.device is not None for shape in target.kv_shapes):
        raise ModelError(f"{target} has layers on several devices: expected one device for the drafter {drafter!r}")
