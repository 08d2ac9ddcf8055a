"""Tensor parallelism: every rank has a part of each of the target's layers, and all decode the same rows."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from collections.abc import Sequence as Rows
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from specframe.errors import ModelError, OptionError
from specframe.value_checks import number

if TYPE_CHECKING:
    import torch

    from specframe.contracts.engine import Clock, Engine
    from specframe.contracts.roles import Observer
    from specframe_std.executors.tp_ranks import Ranks

Value = TypeVar("Value")

DRAFTS = ("replicated", "sharded")
"""What becomes of the draft model, the default first."""

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun passes to each process that it starts."""

TIMEOUT = 600.0
"""Seconds: weights on a slow disk may take one rank minutes longer than another."""


class TensorParallel:
    """Splits the target's layers over the processes that torchrun has started; all of them decode the same rows.

    Args:
        draft: "replicated": every rank has the whole draft model; "sharded": it is split as the target is.
        timeout: seconds that a rank waits for the others.
    """

    offers = frozenset({"loading", "ranks"})

    def __init__(self, draft: str = DRAFTS[0], timeout: float = TIMEOUT) -> None:
        if draft not in DRAFTS:
            raise OptionError(f"executor tp: draft: expected {' or '.join(DRAFTS)}, got {draft!r}")
        self._sharded = {"target", "draft"} if draft == "sharded" else {"target"}
        self._timeout = number("executor tp: timeout", timeout, 0, above=True)

    @property
    def rank(self) -> int:
        """This process's rank; only rank 0 writes."""
        if started():
            return int(os.environ["RANK"])
        return self._ranks.rank

    @property
    def _ranks(self) -> Ranks:
        require_started()
        from specframe_std.executors.launch import joined

        return joined(self._timeout)

    def device(self, recipe: Any) -> torch.device:
        """Return the device of this process's number on its machine, or the CPU where there is no CUDA."""
        require_started()
        from specframe_std.executors.launch import device

        if recipe.bitwise:
            raise OptionError(
                "bitwise: expected an executor of one process, since ranks add up in another order, got tp"
            )
        if recipe.layers == "compiled":
            raise OptionError(
                "layers: expected eager with executor tp, whose layers wait for other ranks, got 'compiled'"
            )
        return device(recipe.device)

    def load(self, role: str, config: Any, read: Callable[..., Any]) -> Any:
        """Return a model, split over the ranks where it is to be."""
        from specframe_std.executors import sharding

        ranks = self._ranks
        if role not in self._sharded or ranks.size == 1:
            with ranks.barrier():
                return read()
        with ranks.barrier():
            sharding.require_divisible(role, config, ranks.size)
            if importlib.util.find_spec("accelerate") is None:
                raise ModelError(
                    "executor tp: transformers splits models with the package accelerate: pip install accelerate"
                )
            with ranks.links.aside():
                model = read(distributed_config=sharding.configuration(ranks.size))
                names = sharding.groups(model, role, ranks.size)
            ranks.add(sharding.checksum(model))
        ranks.links.include(names)
        return model

    def open(self, recipe: Any, parts: Any, observers: Rows[Observer], clock: Clock) -> Engine:
        """Return this rank's engine."""
        from specframe.engine.local_engine import LocalEngine as Whole
        from specframe_std.executors.tp_ranks import Compared

        return Whole(plain(recipe), parts, [*observers, Compared(self._ranks)], clock, self)

    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value."""
        return self._ranks.broadcast(value)

    def barrier(self) -> AbstractContextManager[Callable[[], None]]:
        """Return a context whose block ends alike on every rank."""
        return self._ranks.barrier()

    def end(self, status: int, told: str = "") -> int:
        """Return the exit status of rank 0, which it broadcasts."""
        return self._ranks.end(status, told)


def plain(recipe: Any) -> Any:
    """Return a recipe whose forwards are neither recorded nor compiled unless it says so: they wait for other ranks."""
    chosen = {"graphs": "off", "layers": "eager"}
    return attrs.evolve(recipe, **{name: one for name, one in chosen.items() if getattr(recipe, name) == "auto"})


def started() -> bool:
    """Return whether torchrun, or a program like it, has started this process."""
    return all(name in os.environ for name in VARIABLES)


def require_started() -> None:
    """Raise :class:`OptionError` unless this process is one of several that know of each other."""
    distributed = sys.modules.get("torch.distributed")
    if started() or (distributed and distributed.is_available() and distributed.is_initialized()):
        return
    lacking = [name for name in VARIABLES if name not in os.environ]
    raise OptionError(
        "executor tp: expected a process that torchrun has started, as torchrun --nproc-per-node 2 -m specframe run --executor tp, "
        f"got one without {', '.join(lacking)}"
    )
