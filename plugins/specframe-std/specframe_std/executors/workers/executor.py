"""The executor ``workers``: worker processes of this machine, with models of their own.

The number of workers "auto" follows from the machine's cores, or GPUs, and from its memory; and no more begin than there are
requests to decode.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

import attrs
import psutil
import torch

from specframe.contracts.engine import Clock, Engine, Value
from specframe.contracts.roles import Observer
from specframe.engine.parts import Parts
from specframe.errors import OptionError, literal
from specframe.models import loading
from specframe.models.pairs import is_module
from specframe.plugins.recipe import Recipe
from specframe.value_checks import whole_within
from specframe_std.executors.workers.dispatcher import DispatchingEngine
from specframe_std.executors.workers.messages import packed_recipe
from specframe_std.executors.workers.processes import WorkerProcesses

AUTO = "auto"
"""The number of workers that is left open."""
BESIDE_MODELS = 2**30
"""Bytes that a worker takes apart from its models: Python with torch and transformers takes 0.5 GB, and caches take the rest."""
SHARE = 0.8
"""Share of the memory available that workers may take: other programs need some, and what a forward computes is not foreseen."""


class Workers:
    """Decodes in worker processes of this machine, each with models of its own.

    Options:
        count: number of processes, each on a GPU of its own where there are several; "auto": as many as there are requests, and no
            more than GPUs, or than cores and memory suffice for.
    """

    offers = frozenset({"remote"})

    def __init__(self, count: int | str = 2) -> None:
        if count != AUTO and not whole_within(count, 1):
            raise OptionError(f"count: expected a whole number of at least 1 or {AUTO!r}, got {literal(count)}")
        self.count = count
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
        if self._processes is None:
            count = most_workers(recipe, parts) if self.count == AUTO else int(self.count)
            self._processes = WorkerProcesses(count, as_needed=self.count == AUTO)
        if self._processes.run:
            raise OptionError(
                "executor workers: expected workers that are free, got some at another run: finish that, or take another executor"
            )
        return DispatchingEngine(attrs.evolve(recipe, executor=None), parts, observers, clock, self._processes)

    def dismiss(self) -> None:
        """End the workers; they end with the executor anyway."""
        if self._processes:
            self._processes.dismiss()

    def broadcast(self, value: Value) -> Value:
        """Return the value itself: every row is decoded by one process."""
        return value


def most_workers(recipe: Recipe, parts: Parts) -> int:
    """Return the number of workers that pays on this machine, at least 1: its GPUs, or as many as cores and memory suffice for.

    Args:
        recipe: the options of the run; a device with its number is one device.
        parts: the models, as this process has them.
    """
    device = loading.pick_device(recipe.device)
    if device.type != "cpu":
        return 1 if device.index is not None else torch.accelerator.device_count()
    models = [model for model in (parts.target, parts.draft) if model is not None]
    size = sum(tensor.nbytes for model in models for tensor in (*model.parameters(), *model.buffers()))
    room = int(SHARE * psutil.virtual_memory().available) // (size + BESIDE_MODELS)
    return max(1, min(torch.get_num_threads(), room))
