"""Keys and values in one preallocated tensor."""

from __future__ import annotations

from typing import NamedTuple

import torch

from specframe.contracts.cache import Dense, KVShape, Placement
from specframe.contracts.round import Sequence
from specframe.contracts.rows import RowMap, by_device


class Slab:
    """Preallocates every slot of every row; new keys and values are written in place."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"scatter", "append", "move", "dense"})

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> SlabStore:
        """Return a store with one spare slot per row for padding."""
        return SlabStore(shapes, rows, capacity + 1, device)


class Layer(NamedTuple):
    """The keys, or the values, of one layer: two views of one block, made once, since every forward needs both."""

    flat: torch.Tensor
    """Slot by slot, those of all rows after each other, (rows * slots, H, D)."""
    by_head: torch.Tensor
    """(rows, H, slots, D)."""
    device: torch.device
    """That of both, since asking a tensor for it makes a new object."""


NO_LAYER = Layer(torch.empty(0), torch.empty(0), torch.device("cpu"))


class SlabStore:
    """Blocks of shape (layers, rows, slots, heads, size), one pair for all layers of one shape and device."""

    def __init__(self, shapes: list[KVShape], rows: int, slots: int, device: torch.device) -> None:
        self.rows, self.slots, self._device, self._row_map = rows, slots, device, RowMap(rows, anywhere=True)
        self._blocks: list[torch.Tensor] = []
        self._keys: list[Layer] = [NO_LAYER] * len(shapes)
        self._values: list[Layer] = [NO_LAYER] * len(shapes)
        for shape in dict.fromkeys(shapes):
            layers = [layer for layer, other in enumerate(shapes) if other == shape]
            for size, views in ((shape.key_size, self._keys), (shape.value_size, self._values)):
                block = torch.zeros(
                    len(layers), rows, slots, shape.heads, size, dtype=shape.dtype, device=shape.device or device
                )
                self._blocks.append(block)
                for layer, part in zip(layers, block, strict=True):
                    views[layer] = Layer(part.flatten(0, 1), part.transpose(1, 2), part.device)

    def arrange(self, sequences: list[Sequence]) -> None:
        """Bring the rows of ``sequences`` side by side."""
        self._row_map.arrange(sequences).apply(*self._blocks, axis=1)

    @property
    def first(self) -> int:
        """The batch's first row: 0 when it decodes."""
        return self._row_map.first

    def expect(self, placement: Placement) -> None:
        """Take the slots the next forward writes."""
        rows, self._extent = placement.slots_BT.shape[0], placement.key_order_BS.shape[1]
        starts_B1 = torch.arange(self.first, self.first + rows, device=self._device)[:, None] * self.slots
        places = (placement.slots_BT + starts_B1).flatten()
        self._places = {block.device: places.to(block.device, non_blocking=True) for block in self._blocks}
        self._rows = slice(self.first, self.first + rows)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Dense:
        """Write (B, H, T, D) keys and values and return views (B, H, S, D) of all slots attended to."""
        return Dense(self._write(self._keys[layer], keys), self._write(self._values[layer], values))

    def _write(self, layer: Layer, states: torch.Tensor) -> torch.Tensor:
        layer.flat.index_copy_(0, self._places[layer.device], states.transpose(1, 2).flatten(0, 1))
        return layer.by_head[self._rows, :, : self._extent]

    def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """Move slots of the batch's rows in every layer at once."""
        rows = slice(self.first, self.first + len(sources_BT))
        for device, blocks in by_device(self._blocks).items():
            rows_B1 = torch.arange(rows.start, rows.stop, device=device)[:, None]
            sources, targets = sources_BT.to(device), None if targets_BT is None else targets_BT.to(device)
            for block in blocks:
                if targets is None:
                    block[:, rows, : sources.shape[1]] = block[:, rows_B1, sources]
                else:
                    block[:, rows_B1, targets] = block[:, rows_B1, sources]

    def reserve(self, sequence: Sequence, tokens: int) -> int:
        """Return 0: rows share nothing, and every row has room for the longest sequence."""
        return 0

    def release(self, sequence: Sequence) -> None:
        """Do nothing: the row of a finished sequence is free."""

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self._blocks)
