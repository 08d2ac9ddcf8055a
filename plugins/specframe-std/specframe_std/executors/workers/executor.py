"""The executor ``workers``: worker processes of this machine, with models of their own."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

import attrs

from specframe.contracts.engine import Clock, Engine, Value
from specframe.contracts.roles import Observer
from specframe.engine.parts import Parts
from specframe.errors import OptionError
from specframe.models import loading
from specframe.models.pairs import is_module
from specframe.plugins.recipe import Recipe
from specframe.values import whole
from specframe_std.executors.workers.dispatcher import DispatchingEngine
from specframe_std.executors.workers.messages import packed_recipe
from specframe_std.executors.workers.processes import WorkerProcesses


class Workers:
    """Decodes in worker processes of this machine, each with models of its own.

    Options:
        count: number of processes, each on a GPU of its own where there are several.
    """

    offers = frozenset({"remote"})

    def __init__(self, count: int = 2) -> None:
        self.count = whole("count", count, 1)
        self._processes: WorkerProcesses | None = None

    def home(self, recipe: Recipe) -> Recipe:
        """Return the recipe of this process's own parts: on the CPU, since it runs no model.

        Raises:
            OptionError: an option cannot be pickled.
        """
        models: dict[str, Any] = {name: None for name in ("target", "drafter") if is_module(getattr(recipe, name))}
        packed_recipe(attrs.evolve(recipe, executor=None, **models))
        device = loading.pick_device(recipe.device)
        if device.type == "cpu":
            return recipe
        return attrs.evolve(recipe, device="cpu", dtype=str(loading.pick_dtype(recipe.dtype, device)))

    def open(self, recipe: Recipe, parts: Parts, observers: Rows[Observer], clock: Clock) -> Engine:
        """Return an engine that dispatches requests to the workers.

        Raises:
            OptionError: the workers are still at another run.
        """
        self._processes = self._processes or WorkerProcesses(self.count)
        if self._processes.run:
            raise OptionError(
                "executor workers: expected workers that are free, got some at another run: finish that, or take another executor"
            )
        return DispatchingEngine(attrs.evolve(recipe, executor=None), parts, observers, clock, self._processes)

    def dismiss(self) -> None:
        """End the workers; they end with the executor anyway."""
        if self._processes:
            self._processes.dismiss()

    def agree(self, value: Value) -> Value:
        """Return the value itself: every row is decoded by one process."""
        return value
