"""A prefill chunk beside the draft of rows that decode: two blocks of unlike widths in one forward.

Both have their places from their own batch, as if each were fed alone, and become one rectangle, as wide as the wider one. A row is
widened by copies of its last place: a copy is written to the slot of that place, with the same keys and values. Only real tokens
are computed, and each batch attends for itself.

Tensor names carry their shape: B rows of both batches, T places of a row, S slots.
"""

from __future__ import annotations

import attrs
import numpy as np
import torch
import torch.nn.functional as F

from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.round import Batch
from specframe.model.padding_free import PaddingFree, PaddingFreeBlock

Pair = tuple[torch.Tensor, torch.Tensor]


def prefill_chunk(batch: Batch, left: int, step: int) -> Block:
    """Return ``step`` tokens of each row, of which ``left`` more are unread after them, as a block; cached tokens are padding."""
    uncached_rows = batch.lengths.clip(max=batch.uncached) if batch.uncached_rows is None else batch.uncached_rows
    return Block(batch.last_tokens(step, -left), -left - step, counts=(uncached_rows - left).clip(0, step))


@attrs.frozen(eq=False)
class MixedBatch:
    """Two blocks as one: of rows that decode, and of prompts."""

    block: PaddingFreeBlock
    placement: Placement
    padding_free: PaddingFree
    """The places of the real tokens of both."""
    first: Block
    second: Block

    @classmethod
    def of(cls, first: Block, second: Block, places: tuple[Placement, Placement]) -> MixedBatch:
        """Return blocks with their places as one; logits are those of the first."""
        width, rows = max(first.width, second.width), (len(first.ids_BT), len(second.ids_BT))
        real_BT = np.zeros((sum(rows), width), dtype=bool)
        real_BT[: rows[0], : first.width], real_BT[rows[0] :, : second.width] = first.real, second.real
        groups = ((rows[0], first.width), (rows[1], second.width))
        padding_free = PaddingFree(real_BT, first.ids_BT.device, groups=groups)

        def widened(pair: Pair) -> torch.Tensor:
            parts = (part.expand(count, -1) for part, count in zip(pair, rows, strict=True))
            return torch.cat([part[:, last_place(part.shape[1], width, part.device)] for part in parts])

        first_written, second_written = places[0].written, places[1].written
        placement = Placement(
            widened((places[0].positions_BT, places[1].positions_BT)),
            widened((places[0].slots_BT, places[1].slots_BT)),
            widened((places[0].index_BT, places[1].index_BT)),
            key_indices((places[0].key_index_BS, places[1].key_index_BS), rows),
            sees_BTT=None if places[0].sees_BTT is None else sees(places[0].sees_BTT, rows, second.width, width),
            written=(lambda: first_written().with_rows(second_written())) if first_written and second_written else None,
        )
        return cls(
            PaddingFreeBlock(widened((first.ids_BT, second.ids_BT)), padding_free=padding_free),
            placement,
            padding_free,
            first,
            second,
        )

    def parted(self, scores: Scores) -> Scores:
        """Return the scores of the first block, with those of the second beside them."""
        rows, hidden = len(self.first.ids_BT), scores.hidden
        of_first = {number: states_BTD[:rows, : self.first.width] for number, states_BTD in hidden.items()}
        of_second = {number: states_BTD[rows:, : self.second.width] for number, states_BTD in hidden.items()}
        nothing = scores.logits_BTV.new_empty(len(self.second.ids_BT), 0, scores.logits_BTV.shape[-1])
        return Scores(scores.logits_BTV, of_first, mixed=Scores(nothing, of_second))


def last_place(width: int, wider: int, device: torch.device) -> torch.Tensor:
    """Return the places of a row, the last one repeated, (wider,)."""
    return torch.arange(wider, device=device).clamp(max=width - 1)


def key_indices(pair: Pair, rows: tuple[int, int]) -> torch.Tensor:
    """Return the order of the token in each slot, (B, S); slots that a batch does not attend to hold none for it."""
    slots = max(part.shape[1] for part in pair)
    parts = zip(pair, rows, strict=True)
    return torch.cat([F.pad(part.expand(count, -1), (0, slots - part.shape[1]), value=-1) for part, count in parts])


def sees(tree_BTT: torch.Tensor, rows: tuple[int, int], piece: int, width: int) -> torch.Tensor:
    """Return whether places see places, (B, T, T), of trees and of a piece, which is a chain."""
    chain_TT = torch.ones(piece, piece, dtype=torch.bool, device=tree_BTT.device).tril()
    parts = []
    for part, count in ((tree_BTT, rows[0]), (chain_TT[None], rows[1])):
        at_T = last_place(part.shape[1], width, part.device)
        parts.append(part.expand(count, -1, -1)[:, at_T][:, :, at_T])
    return torch.cat(parts)
