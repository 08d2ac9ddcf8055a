"""Keys and values that grow by concatenation."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import pad_sequence

from specframe.contracts.cache import DenseView, KVShape, Placement
from specframe.contracts.round import Sequence
from specframe.devices.kinds import on_device
from specframe.row_map import by_device
from specframe_std.kv.quantised import Quantisable


class Dynamic(Quantisable):
    """Grows by concatenation and holds no more columns than the batch has, like the caches of published schemes.

    Options:
        dtype: of the target's keys and values: "model", the model's own; "int8" or "fp8", with one scale for each token and head.
        draft_dtype: of the keys and values of drafts.
    """

    offers = frozenset({"append", "move", "grow", "gather", "dense"})

    def open_packed(self, shapes: list[KVShape], rows: int, capacity: int, device: torch.device) -> DynamicStore:
        """Return an empty store; ``rows`` and ``capacity`` do not bound it."""
        return DynamicStore(shapes, rows, device)


class DynamicStore:
    """One (B, H, S, D) tensor per layer for the batch; other live sequences have one tensor per layer each.

    Tensors 2l and 2l + 1 are the keys and the values of layer l.
    """

    slots = None
    """Its memory moves: forwards over it are not recorded."""
    first = 0

    def __init__(self, shapes: list[KVShape], rows: int, device: torch.device) -> None:
        self.rows = rows
        sizes = [(shape, size) for shape in shapes for size in (shape.key_size, shape.value_size)]
        self._tensors = [
            torch.empty(0, s.heads, 0, size, dtype=s.dtype, device=s.device or device) for s, size in sizes
        ]
        self._empty = [tensor.new_empty(tensor.shape[1:]) for tensor in self._tensors]
        self._batch: list[Sequence] = []
        self._column = 0
        """The first column that the next forward writes."""
        self._chosen_BN: torch.Tensor | None = None
        """The columns that it attends to, or None for all."""
        self._parked: dict[int, tuple[Sequence, list[torch.Tensor]]] = {}

    def arrange(self, sequences: list[Sequence]) -> None:
        """Stack the rows of ``sequences``, and keep those of live sequences that leave."""
        if sequences is self._batch:
            return
        row_of = {id(sequence): row for row, sequence in enumerate(self._batch)}
        chosen = {id(sequence) for sequence in sequences}
        for key, row in row_of.items():
            if key not in chosen and not self._batch[row].gone:
                self._parked[key] = (self._batch[row], [tensor[row].clone() for tensor in self._tensors])
        if chosen <= row_of.keys():
            chosen_rows = [row_of[id(s)] for s in sequences]
            rows = {device: on_device(chosen_rows, device) for device in by_device(self._tensors)}
            self._tensors = [tensor.index_select(0, rows[tensor.device]) for tensor in self._tensors]
        else:
            self._tensors = [self._stack(sequences, row_of, layer) for layer in range(len(self._tensors))]
        self._parked = {k: v for k, v in self._parked.items() if k not in chosen and not v[0].gone}
        self._batch = sequences

    def _stack(self, sequences: list[Sequence], row_of: dict[int, int], layer: int) -> torch.Tensor:
        """Return the rows of one tensor, those with fewer columns filled with zeros on the right."""
        rows = []
        for sequence in sequences:
            key = id(sequence)
            if key not in row_of and key not in self._parked and sequence.parent is not None:
                key = id(sequence.parent)
            if key in row_of:
                row = self._tensors[layer][row_of[key]]
            else:
                row = self._parked[key][1][layer] if key in self._parked else self._empty[layer]
            rows.append(row.transpose(0, 1))
        return pad_sequence(rows, batch_first=True).transpose(1, 2)

    def expect(self, placement: Placement) -> None:
        """Drop the columns from the first new one on; layers that a draft left out may have fewer."""
        column = placement.key_index_BS.shape[1] - placement.slots_BT.shape[1]
        if any(tensor.shape[2] > column for tensor in self._tensors):
            self._tensors = [tensor[:, :, :column] for tensor in self._tensors]
        self._column, self._chosen_BN = column, placement.attended_BS

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> DenseView:
        """Append (B, H, T, D) keys and values and return all of them, or those that are attended to."""
        held = self._tensors[2 * layer].shape[2]
        assert held == self._column, f"a growing cache of {held} columns cannot write column {self._column}"
        for place, states in ((2 * layer, keys), (2 * layer + 1, values)):
            self._tensors[place] = torch.cat([self._tensors[place], states], dim=2)
        return DenseView(self._attended(2 * layer), self._attended(2 * layer + 1))

    def _attended(self, place: int) -> torch.Tensor:
        """Return what the forward under way attends to of a tensor."""
        held = self._tensors[place]
        if self._chosen_BN is None:
            return held
        chosen_BN = self._chosen_BN.to(held.device, non_blocking=True)
        rows_B1 = torch.arange(len(held), device=held.device)[:, None]
        return held.transpose(1, 2)[rows_B1, chosen_BN].transpose(1, 2)

    def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
        """Move columns of the batch's rows, layer by layer; without targets, those past the first ones are dropped."""
        rows_B1 = torch.arange(len(sources_BT), device=sources_BT.device)[:, None]
        rows = {device: rows_B1.to(device) for device in by_device(self._tensors)}
        held = {(tensor.device, tensor.shape[2]) for tensor in self._tensors}
        sources = {one: sources_BT.to(one[0]).clamp(max=max(0, one[1] - 1)) for one in held}
        moved = [
            tensor.transpose(1, 2)[rows[tensor.device], sources[tensor.device, tensor.shape[2]]]
            for tensor in self._tensors
        ]
        if targets_BT is None:
            self._tensors = [tensor.transpose(1, 2) for tensor in moved]
            return
        for tensor, columns in zip(self._tensors, moved, strict=True):
            tensor.transpose(1, 2)[rows[tensor.device], targets_BT.to(tensor.device)] = columns

    def reserve(self, sequence: Sequence, tokens: int) -> int:
        """Return 0: rows share nothing, and memory is allocated when tokens are written."""
        return 0

    def release(self, sequence: Sequence) -> None:
        """Do nothing: a finished sequence's columns are dropped when the batch changes."""

    @property
    def nbytes(self) -> int:
        """Bytes of the batch and of other live sequences."""
        parked = (tensor for _, tensors in self._parked.values() for tensor in tensors)
        return sum(tensor.nbytes for tensor in (*self._tensors, *parked))
