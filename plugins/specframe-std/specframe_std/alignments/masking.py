"""BSP: rejected tokens stay in the cache and are masked (Su et al. 2023)."""

from __future__ import annotations

import numpy as np
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Block, Draft, Transfer
from specframe.contracts.round import Batch, Kept
from specframe.devices.kinds import on_device
from specframe.model.run import Run
from specframe.row_map import RowMap
from specframe_std.alignments.published import choice


class Masking:
    """Masks rejected tokens, moves nothing; reproduces the published flaw of position ids that drift: NOT lossless.

    Options:
        positions: "published" counts every column since the row's first, rejected tokens included; "content" counts the
            row's own tokens, which makes it lossless.
    """

    needs = frozenset({"append", "grow"})
    offers: frozenset[str] = frozenset()
    scheduler = "fixed"
    kv = "dynamic"

    def __init__(self, positions: str = "published") -> None:
        self._content = choice("positions", positions, "content")
        if self._content:
            self.offers = frozenset({"lossless"})

    def start(self, run: Run) -> None:
        """Do nothing: a layout knows all it needs."""

    def layout(self, store: KVStore, rows: int, capacity: int) -> MaskedColumns:
        """Return the layout of one cache; no capacity bounds it."""
        return MaskedColumns(store, rows, self._content)

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        """Return the acceptance result as it is: the rejected tokens are masked then."""
        return transfer


class MaskedColumns:
    """Every forward appends columns for all rows at once. A column is empty for a row without a token in it.

    ``order_RS`` (R all rows, S columns) holds the place of each column's token in its row; negative: empty.
    """

    static = False

    def __init__(self, store: KVStore, rows: int, content: bool) -> None:
        self._store, self._row_map, self._content = store, RowMap(rows), content
        self._columns = np.zeros(rows, dtype=np.int64)
        self._index_RS: torch.Tensor | None = None
        self._first_R1: torch.Tensor | None = None

    def arrange(self, batch: Batch) -> None:
        """Let the store and the columns' token indices follow the batch."""
        self._rows(batch)

    def commit(self, batch: Batch, kept: Kept) -> None:
        """Mask the columns of all tokens but the kept ones."""
        index_BS, _ = self._rows(batch)
        index_BS.masked_fill_(index_BS >= kept.device(batch)[:, None], -1)

    def place(self, batch: Batch, block: Block) -> Placement:
        """Append a column for each token."""
        width = block.width
        index_BS, first_B1 = self._rows(batch)
        column = int(self._columns[0])
        self._columns[: len(batch)] = column + width
        index_BT = batch.positions(block.start, width)
        index_BS[:, column : column + width] = index_BT
        slots_BT = torch.arange(column, column + width, device=index_BT.device).expand_as(index_BT)
        starts_B1 = index_BT[:, :1] <= 0
        first_B1.copy_(torch.where(starts_B1, column - index_BT[:, :1], first_B1))
        positions_BT = index_BT if self._content else slots_BT - first_B1
        return Placement(positions_BT, slots_BT, index_BT, index_BS[:, : column + width])

    def _rows(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch's token indices, with room for what it may append, and first columns, as views."""
        self._store.arrange(batch.sequences)
        order_RS, first_R1 = self._room(batch)
        moves = self._row_map.arrange(batch.sequences)
        moves.apply(order_RS, first_R1)
        moves.apply_host(self._columns)
        if moves.fresh:
            order_RS.index_fill_(0, on_device(moves.fresh, order_RS.device), -1)
        if moves.forked:
            forked_F = on_device(moves.forked, order_RS.device)
            beyond_F1 = batch.lengths_B[forked_F, None] - 1
            order_RS[forked_F] = order_RS[forked_F].where(order_RS[forked_F] < beyond_F1, -1)
        self._columns[moves.fresh] = 0
        self._columns[: len(batch)] = self._columns[: len(batch)].max()  # the store fills up the shorter rows
        return order_RS[: len(batch)], first_R1[: len(batch)]

    def _room(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all rows' token indices and first columns, with room for the columns that a forward of this batch appends."""
        needed = int(self._columns.max()) + batch.tokens_BS.shape[1]
        rows, device = len(self._columns), batch.lengths_B.device
        if self._index_RS is None or self._first_R1 is None:
            self._first_R1 = torch.zeros(rows, 1, dtype=torch.long, device=device)
            self._index_RS = torch.full((rows, needed), -1, dtype=torch.long, device=device)
        elif self._index_RS.shape[1] < needed:
            more = self._index_RS.new_full((rows, 2 * needed - self._index_RS.shape[1]), -1)
            self._index_RS = torch.cat([self._index_RS, more], dim=1)
        return self._index_RS, self._first_R1
