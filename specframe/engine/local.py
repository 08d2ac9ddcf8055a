"""The executor of this machine: one process, or several workers."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any

import attrs

from specframe.contracts.engine import Clock, Engine, Value
from specframe.engine import engine
from specframe.errors import OptionError
from specframe.models import loading
from specframe.models.pairs import is_module
from specframe.values import whole

if TYPE_CHECKING:
    from specframe.contracts.roles import Observer
    from specframe.engine.parts import Parts
    from specframe.engine.workers.crew import Crew
    from specframe.plugins.recipe import Recipe


class Local:
    """Decodes in this process, or in worker processes of this machine with models of their own.

    Options:
        workers: number of processes that decode, each on a GPU of its own where there are several; 1: this process.
    """

    offers = frozenset({"elsewhere"})

    def __init__(self, workers: int = 1) -> None:
        self.workers = whole("workers", workers, 1)
        self._crew: Crew | None = None

    def home(self, recipe: Recipe) -> Recipe:
        """Return the recipe of this process's own parts: with workers, on the CPU, since it runs no model.

        Raises:
            OptionError: an option cannot be pickled.
        """
        if self.workers == 1:
            return recipe
        from specframe.engine.workers.messages import packed_recipe

        models: dict[str, Any] = {name: None for name in ("target", "drafter") if is_module(getattr(recipe, name))}
        packed_recipe(attrs.evolve(recipe, executor=None, **models))
        device = loading.pick_device(recipe.device)
        if device.type == "cpu":
            return recipe
        return attrs.evolve(recipe, device="cpu", dtype=str(loading.pick_dtype(recipe.dtype, device)))

    def open(self, recipe: Recipe, parts: Parts, observers: Rows[Observer], clock: Clock) -> Engine:
        """Return an engine: of this process, or one that deals requests to the workers.

        Raises:
            OptionError: the workers are still at another run.
        """
        if self.workers == 1:
            return engine.Engine(recipe, parts, observers, clock, self)
        from specframe.engine.workers.crew import Crew
        from specframe.engine.workers.engine import DealingEngine

        self._crew = self._crew or Crew(self.workers)
        if self._crew.run:
            raise OptionError(
                "executor local: expected workers that are free, got some at another run: finish that, or take another executor"
            )
        return DealingEngine(attrs.evolve(recipe, executor=None), parts, observers, clock, self._crew)

    def dismiss(self) -> None:
        """End the workers; they end with the executor anyway."""
        if self._crew:
            self._crew.dismiss()

    def agree(self, value: Value) -> Value:
        """Return the value itself: every row is decoded by one process."""
        return value
