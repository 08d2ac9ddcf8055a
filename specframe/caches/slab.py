"""Keys and values in one preallocated tensor."""

from __future__ import annotations

import attrs
import torch

from specframe.contracts.cache import Dense, KVShape, Placement
from specframe.contracts.round import Sequence
from specframe.rows import RowMap, by_device


class Slab:
    """Preallocates every slot of every row; new keys and values are written in place."""

    needs: frozenset[str] = frozenset()
    offers = frozenset({"scatter", "append", "move", "dense"})

    def open(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> SlabStore:
        """Return a store with one spare slot per row for padding."""
        return SlabStore(shapes, rows, capacity + 1, device)


@attrs.define(eq=False)
class Part:
    """The keys, or the values, of one layer: views of one block, made once for all layers of a forward."""

    flat: torch.Tensor
    """Slot by slot, those of all rows after each other, (rows * slots, H, D)."""
    device: torch.device
    """That of the views, since asking a tensor for it makes a new object."""
    seen: torch.Tensor
    """The slots that the forward attends to, (B, H, S, D)."""
    fresh: torch.Tensor | None = None
    """The last T of these slots, (B, H, T, D), where the forward writes them; None: it writes others."""


class SlabStore:
    """Blocks of shape (layers, rows, slots, heads, size), one pair for all layers of one shape and device."""

    def __init__(self, shapes: list[KVShape], rows: int, slots: int, device: torch.device) -> None:
        self.rows, self.slots, self._device, self._row_map = rows, slots, device, RowMap(rows, anywhere=True)
        self._blocks: list[torch.Tensor] = []
        self._parts: list[list[Part]] = []
        """The layers of each block."""
        self._keys: dict[int, Part] = {}
        self._values: dict[int, Part] = {}
        for shape in dict.fromkeys(shapes):
            layers = [layer for layer, other in enumerate(shapes) if other == shape]
            for size, held in ((shape.key_size, self._keys), (shape.value_size, self._values)):
                block = torch.zeros(
                    len(layers), rows, slots, shape.heads, size, dtype=shape.dtype, device=shape.device or device
                )
                self._blocks.append(block)
                self._parts.append([Part(part.flatten(0, 1), part.device, part.transpose(1, 2)) for part in block])
                held.update(zip(layers, self._parts[-1], strict=True))

    def arrange(self, sequences: list[Sequence]) -> None:
        """Bring the rows of ``sequences`` side by side."""
        self._row_map.arrange(sequences).apply(*self._blocks, axis=1)

    @property
    def first(self) -> int:
        """The batch's first row: 0 when it decodes."""
        return self._row_map.first

    def expect(self, placement: Placement) -> None:
        """Take the slots the next forward writes and attends to."""
        rows, width = placement.slots_BT.shape
        extent, even = placement.key_order_BS.shape[1], placement.even
        mine = slice(self.first, self.first + rows)
        for block, parts in zip(self._blocks, self._parts, strict=True):
            seen = block[:, mine, :extent].transpose(2, 3)
            fresh = seen[..., extent - width :, :].unbind() if even else [None] * len(parts)
            for part, attended, written in zip(parts, seen.unbind(), fresh, strict=True):
                part.seen, part.fresh = attended, written
        if not even:
            starts_B1 = torch.arange(mine.start, mine.stop, device=self._device)[:, None] * self.slots
            places = (placement.slots_BT + starts_B1).flatten()
            self._places = {block.device: places.to(block.device, non_blocking=True) for block in self._blocks}

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Dense:
        """Write (B, H, T, D) keys and values and return views (B, H, S, D) of all slots attended to."""
        return Dense(self._write(self._keys[layer], keys), self._write(self._values[layer], values))

    def _write(self, part: Part, states: torch.Tensor) -> torch.Tensor:
        if part.fresh is not None:
            part.fresh.copy_(states)
        else:
            part.flat.index_copy_(0, self._places[part.device], states.transpose(1, 2).flatten(0, 1))
        return part.seen

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
