"""What sequences that gave their rows back had cached, in the host's memory until they come back or end."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from specframe.contracts.round import Sequence, SequenceState
from specframe.devices.out_of_memory import out_of_memory
from specframe_std.kv.slot_tables import Slots


class HostCopies:
    """First slots of sequences that wait, copied from a pool and back without device synchronisation.

    Copies are queued on the device like all that is computed there, so what is copied is what was there before.

    Args:
        memory: the pool.
        most: bytes of all copies together. Of a sequence for which there are fewer left, as many first slots are kept as fit.
    """

    def __init__(self, memory: Slots, most: int) -> None:
        self._memory, self._most = memory, most
        self._kept = weakref.WeakKeyDictionary[Sequence, list[torch.Tensor]]()
        """The first slots of each tensor of the pool, by sequence: who let go of one that waits needs its slots no longer."""

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        self.sweep()
        return sum(part.nbytes for parts in self._kept.values() for part in parts)

    def sweep(self) -> None:
        """Let go of what is not wanted any more."""
        for sequence in [*self._kept]:
            if sequence.state is not SequenceState.WAITING:  # it has come back, or was aborted
                del self._kept[sequence]

    def keep(self, sequence: Sequence, slots: np.ndarray) -> None:
        """Copy the pool's slots that are a sequence's first ones to the host, or the first of them.

        Nothing is kept where the device has no memory to bring them together: the sequence is read again then.
        """
        count = min(len(slots), (self._most - self.nbytes) // self._memory.slot_bytes)
        if count <= 0:
            return
        parts = list[torch.Tensor]()
        if spared(self._memory.to_host, slots[:count], parts):
            self._kept[sequence] = parts

    def count(self, sequence: Sequence) -> int:
        """Return how many first slots of a sequence are here."""
        self.sweep()
        return len(self._kept[sequence][0]) if sequence in self._kept else 0

    def bring_back(self, sequence: Sequence, first: int, slots: np.ndarray) -> bool:
        """Copy a sequence's slots from the ``first`` on into these of the pool; return whether the device had memory for that.

        The copies stay until the sequence has begun.
        """
        parts = [part[first : first + len(slots)] for part in self._kept[sequence]]
        return spared(self._memory.from_host, slots, parts)


def spared(function: Callable[..., None], *given: Any) -> bool:
    """Call a function; return whether the device had memory for it."""
    try:
        function(*given)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return False
    return True
