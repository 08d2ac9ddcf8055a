"""Keys and values by slot, one tensor for each layer's keys and one for its values, which grow and shrink.

Tensor names carry their shape: N slots, H heads, D size of a head.
"""

from __future__ import annotations

import numpy as np
import torch

from specframe.contracts.cache import KVShape
from specframe.devices import kinds
from specframe.devices.kinds import on_device
from specframe.row_map import by_device

FILLER = 0
"""The slot that no row owns. Padding is written there, and a row reads it where it has no slot: what it holds is finite."""


class Slots:
    """Slots (N, H, D) of each layer. A slot has one number in all layers."""

    @torch.inference_mode(False)
    def __init__(self, shapes: list[KVShape], device: torch.device) -> None:
        self.layers = [
            [
                torch.zeros(1, shape.heads, size, dtype=shape.dtype, device=shape.device or device)
                for size in (shape.key_size, shape.value_size)
            ]
            for shape in shapes
        ]
        """Keys and values of each layer."""
        self.slot_bytes = self.nbytes
        self.devices = [*by_device(self._parts)]
        """The devices that layers are on."""

    @property
    def _parts(self) -> list[torch.Tensor]:
        return [part for layer in self.layers for part in layer]

    @property
    def count(self) -> int:
        """Slots that every layer has."""
        return min(map(len, self._parts), default=1)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(part.nbytes for part in self._parts)

    def sizes(self, count: int) -> tuple[int, int]:
        """Return the bytes of ``count`` slots of all layers, and of what :meth:`copy` takes for all of them."""
        parts = [(count * part[0].nbytes, (part.device, part.dtype, part.shape[1:])) for part in self._parts]
        return sum(nbytes for nbytes, _ in parts), sum({kind: nbytes for nbytes, kind in parts}.values())

    @torch.inference_mode(False)
    def resize(self, count: int) -> None:
        """Have ``count`` slots. The first ones keep what they hold, new ones hold zeros.

        Layers follow one by one, so no more than one tensor is there twice. Where memory runs out in between, layers before have
        more slots than those after, which does no harm: the next call brings all to its number.
        """
        for layer in self.layers:
            for place, part in enumerate(layer):
                if len(part) != count:
                    layer[place] = part.new_zeros(count, *part.shape[1:])
                    kept = min(count, len(part))
                    layer[place][:kept] = part[:kept]
                    del part

    def copy(self, sources: np.ndarray | torch.Tensor, targets: np.ndarray | torch.Tensor) -> None:
        """Copy slots to other slots, all at once.

        Memory is taken before the first copy: a lack of it leaves every layer as it was.
        """
        room: dict[tuple[object, ...], torch.Tensor] = {}
        for part in self._parts:
            kind = part.device, part.dtype, part.shape[1:]
            if kind not in room:
                room[kind] = part.new_empty(len(sources), *part.shape[1:])
        for device, parts in by_device(self._parts).items():
            read, written = to_device(sources, device), to_device(targets, device)
            for part in parts:
                held = room[device, part.dtype, part.shape[1:]]
                torch.index_select(part, 0, read, out=held)
                part.index_copy_(0, written, held)

    def to_host(self, slots: np.ndarray, copied: list[torch.Tensor]) -> None:
        """Add copies of slots on the host to a list, one of each part of each layer, without synchronisation.

        They are for the device to read: what it has queued may not be there yet.

        Memory of the device is taken for one part at a time.
        """
        places = {device: to_device(slots, device) for device in self.devices}
        for part in self._parts:
            chosen = part.index_select(0, places[part.device])
            copied.append(kinds.of(part.device).to_host(chosen))

    def from_host(self, slots: np.ndarray, copied: list[torch.Tensor]) -> None:
        """Copy what :meth:`to_host` has copied to slots, without synchronisation."""
        places = {device: to_device(slots, device) for device in self.devices}
        for part, held in zip(self._parts, copied, strict=True):
            part.index_copy_(0, places[part.device], held.to(part.device, non_blocking=True))

    def clear(self, slots: np.ndarray | torch.Tensor) -> None:
        """Fill slots with zeros. What they held may be nan, which masks do not hide: 0 times nan is nan."""
        for device, parts in by_device(self._parts).items():
            cleared = to_device(slots, device)
            for part in parts:
                part.index_fill_(0, cleared, 0)


def to_device(slots: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return numbers of slots on a device, (N,), without synchronisation."""
    return slots.to(device, non_blocking=True) if isinstance(slots, torch.Tensor) else on_device(slots, device)
