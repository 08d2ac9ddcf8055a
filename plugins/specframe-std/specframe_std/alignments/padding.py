"""DSD: add padding every round without removing the old padding (Yan et al. 2025)."""

from __future__ import annotations

import attrs
import numpy as np
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Acceptance, Block, Draft, Transfer
from specframe.contracts.round import Batch
from specframe_std.alignments.eqspec import EqSpec, LeftPadded
from specframe_std.alignments.published import choice


class Padding(EqSpec):
    """Adds padding without removing old padding; reproduces the published flaws of mask, positions and bonus: NOT lossless.

    Rows only grow wider. With all three fixes the alignment is lossless, but still wastes memory and time.

    Options:
        mask: "published" lets padding be attended to; "content" hides it.
        positions: "published" is the column's number, padding included; "content" counts the row's own tokens.
        bonus: "published" emits the rejected draft token as bonus token; "target" emits the target's choice.
    """

    needs = frozenset({"append", "move", "grow"})
    offers: frozenset[str] = frozenset()

    def __init__(self, mask: str = "published", positions: str = "published", bonus: str = "published") -> None:
        self._mask = choice("mask", mask, "content")
        self._positions = choice("positions", positions, "content")
        self._bonus = choice("bonus", bonus, "target")
        if self._mask and self._positions and self._bonus:
            self.offers = frozenset({"lossless"})

    def layout(self, store: KVStore, rows: int, capacity: int) -> Inflating:
        """Return the layout of one cache; no capacity bounds it."""
        return Inflating(store, rows, self._mask, self._positions)

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        """Realign the rows; unless fixed, the bonus token is the rejected draft token."""
        if not self._bonus:
            transfer = transfer.of(with_draft_bonus(draft, transfer.acceptance))
        return super().commit(batch, draft, transfer)


def with_draft_bonus(draft: Draft, acceptance: Acceptance) -> Acceptance:
    """Return the acceptance result with the rejected draft token in the bonus token's place; a full acceptance stays as it is."""
    if not draft.nodes:
        return acceptance
    place_B1 = acceptance.accepted_B[:, None]
    own_B1 = acceptance.tokens_BT.gather(1, place_B1)
    drafted_B1 = draft.tokens_BN.gather(1, place_B1.clamp(max=draft.nodes - 1))
    bonus_B1 = torch.where(place_B1 < draft.nodes, drafted_B1, own_B1)
    return Acceptance(acceptance.accepted_B, acceptance.tokens_BT.scatter(1, place_B1, bonus_B1))


class Inflating(LeftPadded):
    """Left padding that is never removed: a row that gained fewer tokens gets the difference as further padding."""

    def __init__(self, store: KVStore, rows: int, mask: bool, positions: bool) -> None:
        super().__init__(store, rows)
        self._mask, self._positions = mask, positions

    def width(self, padding: np.ndarray, cached: np.ndarray) -> int:
        """Return the columns of the widest row, present padding included."""
        return int((padding + cached).max())

    def place(self, batch: Batch, block: Block) -> Placement:
        """Append a column for each token; unless fixed, padding is seen and a token's position is its column."""
        placement = super().place(batch, block)
        if not self._mask:
            extent = placement.key_index_BS.shape[1]
            key_index_BS = torch.arange(extent, device=placement.slots_BT.device)[None]
            placement = attrs.evolve(placement, index_BT=placement.slots_BT, key_index_BS=key_index_BS)
        return placement if self._positions else attrs.evolve(placement, positions_BT=placement.slots_BT)
