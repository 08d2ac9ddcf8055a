"""Blocks that attention reads where they lie, by a table of each row's blocks.

Tensor names carry their shape: B rows, N blocks of a row, P blocks of the pool, S slots, H heads, D size of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from specframe.contracts import cache
from specframe.contracts.cache import KVView, Placement
from specframe_std.kv.pooled import PooledRow, SharedPoolStore


class BlockViews(SharedPoolStore):
    """Hands out the pool's blocks and the rows' tables. Slots that are asked for by number are gathered."""

    block: int
    """Slots of a block."""
    _tables: dict[torch.device, torch.Tensor] | None = None
    """The blocks of each row that are attended to, from 0 on, (B, N), or None if slots are asked for by number."""

    def _table(self, rows: list[PooledRow], numbers_BN: torch.Tensor) -> torch.Tensor:
        self._numbers_BN = numbers_BN
        return super()._table(rows, numbers_BN)  # type: ignore[safe-super]  # that of a store of blocks

    def _attend(self, placement: Placement, table_BS: torch.Tensor) -> None:
        if placement.attended_BS is not None:
            self._tables = None
            super()._attend(placement, table_BS)
            return
        count = math.ceil(placement.key_index_BS.shape[1] / self.block)
        numbers_BN = self._numbers_BN[:, :count]
        numbers_BN = F.pad(numbers_BN, (0, count - numbers_BN.shape[1]))
        # where a row has no block its first one is read: what is hidden has to be finite all the same
        numbers_BN = numbers_BN.where(numbers_BN > 0, numbers_BN[:, :1]) - 1
        self._tables = {device: numbers_BN.to(device, non_blocking=True) for device in self.memory.devices}

    def _view(self, keys_NHD: torch.Tensor, values_NHD: torch.Tensor) -> KVView:
        if self._tables is None:
            return super()._view(keys_NHD, values_NHD)
        keys_PKHD, values_PKHD = (part[1:].unflatten(0, (-1, self.block)) for part in (keys_NHD, values_NHD))
        return cache.PagedView(keys_PKHD, values_PKHD, self._tables[keys_NHD.device], self.block)
