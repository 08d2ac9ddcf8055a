"""Memory of the simulated devices: bytes in use, their maximum, and a limit beyond which allocations fail as CUDA's do."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator

import torch


class DeviceMemory:
    """Bytes in use on each device, by its index."""

    def __init__(self) -> None:
        self.used: dict[int, int] = defaultdict(int)
        self.peak: dict[int, int] = defaultdict(int)
        self._limit: int | None = None

    @contextlib.contextmanager
    def limited(self, nbytes: int) -> Iterator[None]:
        """Let each device have no more memory than this inside the block."""
        before, self._limit = self._limit, nbytes
        try:
            yield
        finally:
            self._limit = before

    def take(self, index: int, nbytes: int) -> None:
        """Count bytes as in use.

        Raises:
            torch.OutOfMemoryError: there are fewer left.
        """
        if self._limit is not None and self.used[index] + nbytes > self._limit:
            raise torch.OutOfMemoryError(
                f"sim out of memory. Tried to allocate {nbytes} bytes. sim:{index} has a total capacity of {self._limit} bytes of "
                f"which {self._limit - self.used[index]} are free."
            )
        self.used[index] += nbytes
        self.peak[index] = max(self.peak[index], self.used[index])

    def give_back(self, index: int, nbytes: int) -> None:
        """Count bytes as free."""
        self.used[index] -= nbytes


MEMORY = DeviceMemory()
"""The memory of this program's devices."""


NUMBERS = itertools.count()
"""Numbers of allocations, in the order in which they are made."""


class MemoryBlock:
    """An allocation: in use until the last tensor that looks at it is gone."""

    __slots__ = ("__weakref__", "_index", "_memory", "_nbytes", "number")

    def __init__(self, index: int, nbytes: int) -> None:
        self.number = next(NUMBERS)
        self._memory, self._index, self._nbytes = MEMORY, index, 0
        MEMORY.take(index, nbytes)
        self._nbytes = nbytes

    def __del__(self) -> None:
        if self._nbytes:
            self._memory.give_back(self._index, self._nbytes)
