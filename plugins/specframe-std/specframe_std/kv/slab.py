"""A preallocated slot for every token of every row."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from specframe.contracts.cache import DenseView, KVShape, Placement
from specframe.contracts.round import Sequence
from specframe.row_map import RowMap, by_device
from specframe_std.kv.quantised import Quantisable


class Slab(Quantisable):
    """Preallocates every slot of every row; new keys and values are written in place.

    Options:
        dtype: of the target's keys and values: "model", the model's own; "int8" or "fp8", with one scale for each token and head.
        draft_dtype: of the keys and values of drafts.
    """

    offers = frozenset({"scatter", "append", "move", "gather", "any-row", "dense", "deferred"})

    def open_packed(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> SlabStore:
        """Return a store with one spare slot per row for padding."""
        return SlabStore(shapes, rows, capacity + 1, device)


@attrs.define(eq=False)
class SlabBlock:
    """Keys and values of one shape: those of each layer are a part. Views of the parts are made for all of them at once."""

    whole: torch.Tensor
    """(parts, rows, slots, heads, size)."""
    by_head: torch.Tensor = attrs.field(init=False)
    """The same as attention has it, (parts, rows, heads, slots, size)."""
    flat: tuple[torch.Tensor, ...] = attrs.field(init=False)
    """Each part slot by slot, those of all rows after each other, (rows * slots, H, D)."""
    seen: tuple[torch.Tensor, ...] = ()
    """The slots of each part that the forward attends to, (B, H, S, D)."""
    fresh: tuple[torch.Tensor, ...] | None = None
    """The last T of these slots, (B, H, T, D), where the forward writes them, or None if it writes others."""
    places: torch.Tensor = attrs.field(init=False)
    """Those others, numbered as in ``flat``."""
    chosen_BN: torch.Tensor | None = None
    """The slots that the forward attends to, numbered as in ``flat``, or None for those in ``seen``."""

    @by_head.default
    def _as_attention_has_it(self) -> torch.Tensor:
        return self.whole.transpose(2, 3)

    @flat.default
    def _slot_by_slot(self) -> tuple[torch.Tensor, ...]:
        return self.whole.flatten(1, 2).unbind()


class SlabStore:
    """Blocks for the keys and values of all layers, one for each shape and device: a layer's keys and values may share one."""

    def __init__(self, shapes: list[KVShape], rows: int, slots: int, device: torch.device) -> None:
        self.rows, self.slots, self._row_map = rows, slots, RowMap(rows, anywhere=True)
        self._starts_R1 = torch.arange(rows, device=device)[:, None] * slots
        self._keys: dict[int, tuple[SlabBlock, int]] = {}
        """The block that has a layer's keys, and their part of it."""
        self._values: dict[int, tuple[SlabBlock, int]] = {}
        kinds: dict[tuple[Any, ...], list[tuple[dict[int, tuple[SlabBlock, int]], int]]] = {}
        for held, sizes in ((self._keys, "key_size"), (self._values, "value_size")):
            for layer, shape in enumerate(shapes):
                kind = shape.heads, getattr(shape, sizes), shape.dtype, shape.device or device
                kinds.setdefault(kind, []).append((held, layer))
        self._placed: tuple[torch.Tensor, slice]
        """The slots of the tokens that the forward feeds, (B, T), and its rows."""
        self._blocks: list[SlabBlock] = []
        self._moved: list[torch.Tensor] = []
        """What is moved at once, which takes memory: keys, or values."""
        for (heads, size, dtype, own), parts in kinds.items():
            block = SlabBlock(torch.zeros(len(parts), rows, slots, heads, size, dtype=dtype, device=own))
            self._blocks.append(block)
            for place, (held, layer) in enumerate(parts):
                held[layer] = block, place
            keys = sum(held is self._keys for held, _ in parts)
            self._moved += [some for some in block.whole.split([keys, len(parts) - keys]) if len(some)]

    def arrange(self, sequences: list[Sequence]) -> None:
        """Bring the rows of ``sequences`` side by side."""
        if (moves := self._row_map.arrange(sequences)).sources:
            moves.apply(*self._moved, axis=1)

    @property
    def first(self) -> int:
        """The batch's first row: 0 when it decodes."""
        return self._row_map.first

    def expect(self, placement: Placement) -> None:
        """Take the slots the next forward writes and attends to."""
        rows, width = placement.slots_BT.shape
        extent, even = placement.key_index_BS.shape[1], placement.even
        first = self.first if placement.first_row is None else placement.first_row
        mine = slice(first, first + rows)
        for block in self._blocks:
            block.seen = block.by_head[:, mine, :, :extent].unbind()
            block.fresh = block.by_head[:, mine, :, extent - width : extent].unbind() if even else None
        self._placed = placement.slots_BT, mine
        if not even:
            places = self.places().flatten()
            for block in self._blocks:
                block.places = places.to(block.whole.device, non_blocking=True)
        chosen_BN = placement.attended_BS
        if chosen_BN is not None:
            chosen_BN = chosen_BN + self._starts_R1[mine]
        for block in self._blocks:
            block.chosen_BN = None if chosen_BN is None else chosen_BN.to(block.whole.device, non_blocking=True)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> DenseView:
        """Write (B, H, T, D) keys and values and return views (B, H, S, D) of all slots attended to."""
        return DenseView(written(*self._keys[layer], keys), written(*self._values[layer], values))

    def view(self, layer: int) -> DenseView:
        """Return views (B, H, S, D) of all slots attended to."""
        return DenseView(attended(*self._keys[layer]), attended(*self._values[layer]))

    def places(self) -> torch.Tensor:
        """Return the places of the tokens that the forward feeds among the slots of all rows, (B, T)."""
        slots_BT, mine = self._placed
        return slots_BT + self._starts_R1[mine]

    def memory(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and the values of a layer slot by slot, those of all rows after each other, (rows * slots, H, D)."""
        (keys, key), (values, value) = self._keys[layer], self._values[layer]
        return keys.flat[key], values.flat[value]

    def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """Move slots of the batch's rows in every layer at once."""
        rows = slice(self.first, self.first + len(sources_BT))
        for device, blocks in by_device(self._moved).items():
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
        return sum(block.whole.nbytes for block in self._blocks)


def written(block: SlabBlock, place: int, states: torch.Tensor) -> torch.Tensor:
    """Write the keys, or the values, of one layer and return the slots attended to."""
    if block.fresh is not None:
        block.fresh[place].copy_(states)
    else:
        block.flat[place].index_copy_(0, block.places, states.transpose(1, 2).flatten(0, 1))
    return block.seen[place] if block.chosen_BN is None else attended(block, place)


def attended(block: SlabBlock, place: int) -> torch.Tensor:
    """Return the slots attended to of the keys, or the values, of one layer."""
    if block.chosen_BN is not None:
        chosen_ND = block.flat[place].index_select(0, block.chosen_BN.flatten())
        return chosen_ND.unflatten(0, block.chosen_BN.shape).transpose(1, 2)
    return block.seen[place]
