"""Process groups that can be cut and tied again: a rank that fails must not leave the others waiting.

A mesh of devices knows its groups by name, and so does a model that was split over it. A group of our own is registered under that
name: when it is destroyed, every rank that waits in it gets an error, and another group takes its place.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

REGISTRY: Any = torch._C._distributed_c10d
"""Process groups by name."""


class Links:
    """The process groups of all ranks: one for messages between hosts, and those of the models.

    Args:
        timeout: seconds that a rank waits for the others.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = datetime.timedelta(seconds=timeout)
        self._first: dict[str, dist.ProcessGroup] = {}
        """The groups that models' meshes were made with, by the names that they know."""
        self._models: dict[str, dist.ProcessGroup] = {}
        """The groups in their places; empty while the links are cut."""
        self.hosts: dist.ProcessGroup | None = self._made("gloo")

    def _made(self, backend: str) -> dist.ProcessGroup:
        made: dist.ProcessGroup = dist.new_group(backend=backend, timeout=self._timeout)
        return made

    def include(self, names: Iterable[str]) -> None:
        """Put a group of our own in place of each group of a model; every rank does."""
        for name in names:
            if name not in self._first:
                self._first[name] = REGISTRY._resolve_process_group(name)
                self._replace(name)

    def _replace(self, name: str) -> None:
        self._models[name] = self._made(dist.get_backend(self._first[name]))
        register(name, self._models[name])

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Have the first groups back inside the block, where meshes are made.

        A mesh keeps the groups that it finds when it is made, and connections close with the last object that knows of them.
        """
        for name, group in self._first.items():
            register(name, group)
        try:
            yield
        finally:
            for name, group in self._models.items():
                register(name, group)

    def cut(self) -> None:
        """Destroy all groups: a rank that waits in one of them gets an error."""
        for name in self._models:
            register(name, self._first[name])
        groups = [*self._models.values(), *([self.hosts] if self.hosts is not None else [])]
        self._models, self.hosts = {}, None
        while groups:
            with contextlib.suppress(RuntimeError):  # another rank has closed it already
                dist.destroy_process_group(groups.pop())
        gc.collect()  # a pipeline that nobody needs may know of them

    def tie(self) -> None:
        """Make all groups anew, after they were cut; every rank does."""
        self.hosts = self._made("gloo")
        for name in self._first:
            self._replace(name)


def register(name: str, group: dist.ProcessGroup) -> None:
    """Give a group a name, in place of the group that had it."""
    REGISTRY._unregister_process_group(name)
    REGISTRY._register_process_group(name, group)
