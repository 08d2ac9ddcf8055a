"""Process groups that can be cut and tied again: a rank that fails must not leave the others waiting.

A mesh of devices knows its groups by name, and so does a model that was split over it. A group of our own is registered under that
name: when it is destroyed, every rank that waits in it gets an error, and another group takes its place.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
from collections.abc import Iterable

import torch
import torch.distributed as dist

REGISTRY = torch._C._distributed_c10d
"""Process groups by name."""


class Links:
    """The process groups of all ranks: one for messages between hosts, and those of the models.

    Args:
        timeout: seconds that a rank waits for the others.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = datetime.timedelta(seconds=timeout)
        self._models: dict[str, dist.ProcessGroup | None] = {}
        """The groups of models, by the names that their meshes know."""
        self.hosts: dist.ProcessGroup | None = self._made("gloo")

    def _made(self, backend: str) -> dist.ProcessGroup:
        made: dist.ProcessGroup = dist.new_group(backend=backend, timeout=self._timeout)
        return made

    def include(self, names: Iterable[str]) -> None:
        """Put a group of its own in the place of each group of a model; every rank does."""
        for name in names:
            if name not in self._models:
                backend = dist.get_backend(REGISTRY._resolve_process_group(name))
                REGISTRY._unregister_process_group(name)
                self._register(name, backend)

    def _register(self, name: str, backend: str) -> None:
        self._models[name] = self._made(backend)
        REGISTRY._register_process_group(name, self._models[name])

    def cut(self) -> None:
        """Destroy all groups: a rank that waits in one of them gets an error."""
        self._backends = {}
        for name, group in self._models.items():
            if group is not None:
                self._backends[name] = dist.get_backend(group)
                REGISTRY._unregister_process_group(name)
                self._destroy(group)
                self._models[name] = None
        group = None
        if self.hosts is not None:
            self._destroy(self.hosts)
            self.hosts = None
        gc.collect()  # connections close with the last object that knows of them, as a result that nobody waited for

    @staticmethod
    def _destroy(group: dist.ProcessGroup) -> None:
        with contextlib.suppress(RuntimeError):  # another rank has closed it already
            dist.destroy_process_group(group)

    def tie(self) -> None:
        """Make all groups anew, after they were cut; every rank does."""
        self.hosts = self._made("gloo")
        for name, backend in self._backends.items():
            self._register(name, backend)
