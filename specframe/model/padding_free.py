"""Padding-free forwards: the real tokens of all rows in one row, and mixed batches, which are fed so.

Linear layers, norms, experts and the language head see (1, N) tokens. Attention and the KV store see the rectangle of rows:
keys, values and queries are spread over it on the way in, what was attended to is gathered on the way out. Strategies, layouts
and stores know nothing of it.

A mixed batch has a prefill chunk and the draft of rows that decode: two blocks of unlike widths in one forward. Both have their
places from their own batch, as if each were fed alone, and become one rectangle, as wide as the wider one. A row is widened by
copies of its last place: a copy is written to the slot of that place, with the same keys and values. Only real tokens are
computed, and each batch attends for itself.

Tensor names carry their shape: B rows, T places of a row, N real tokens of all rows, H heads, D head size, S slots.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import torch
import torch.nn.functional as F

from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.round import Batch
from specframe.devices.kinds import on_device
from specframe.model import current_numerics

LAYING_OUT = 4_000_000
"""Weights of a layer times padding tokens from which real tokens are put into one row. To spread and gather takes a layer about as
long as these multiplications: few tokens of a small model gain nothing (benchmarks/README.md)."""

PADDING_FREE_PAYS = 0.15
"""Share of padding among a block's places from which its real tokens are put into one row. Spreading and gathering cost up to a
tenth of a forward of few tokens, so less padding than this gains nothing (benchmarks/README.md)."""


class PaddingFree:
    """The places of N real tokens in a rectangle of B rows and T places.

    Args:
        real_BT: which places hold a real token, on the host; at least one does.
        device: of the model.
        tokens: N, where it has to be a certain number; the last real token is then computed as often as it takes.
        groups: the rows and the width of batches in one rectangle, one after the other. Each attends for itself, and the logits are
            those of the first. It is None where there is one batch.
    """

    def __init__(
        self,
        real_BT: np.ndarray,
        device: torch.device,
        tokens: int | None = None,
        groups: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        self.rows, self.width = real_BT.shape
        ends = np.cumsum([rows for rows, _ in groups or ()]).tolist()
        self._own = [(slice(end - rows, end), width) for end, (rows, width) in zip(ends, groups or (), strict=True)]
        """The rows and the width of each batch."""
        self.groups, self._heard = groups, groups[0] if groups else real_BT.shape
        self._masks: tuple[Any, list[torch.Tensor], list[list[torch.Tensor]]] = None, [], []
        """The mask of the layer before, its parts for each batch, and what was made of these for shared heads."""
        at_N = np.flatnonzero(real_BT)
        real, self.tokens = len(at_N), tokens or len(at_N)
        at_N = np.pad(at_N, (0, self.tokens - real), mode="edge")
        first_B = np.cumsum(real_BT.sum(1)) - real_BT.sum(1)
        # padding repeats a real token of its own row: another row's may be nan, which would be cached among this row's
        token_BT = np.maximum(np.cumsum(real_BT).reshape(real_BT.shape) - 1, first_B[:, None])
        token_BT = np.minimum(token_BT, real - 1)
        both = on_device(np.concatenate([at_N, token_BT.ravel()]), device)  # in one copy
        self._at_N, self._token_BT = both[: self.tokens], both[self.tokens :]

    def take(self, other: PaddingFree) -> None:
        """Take the places of another one of the same rows, width and tokens, in the same memory."""
        self._at_N.copy_(other._at_N)
        self._token_BT.copy_(other._token_BT)

    def row(self, values_BT: torch.Tensor) -> torch.Tensor:
        """Return the values of the real tokens, (1, N, ...), of values (B, T, ...) or, the same for all rows, (1, T, ...)."""
        spread = values_BT.expand(self.rows, *values_BT.shape[1:])
        return spread.flatten(0, 1).index_select(0, self._at_N)[None]

    def rectangle(self, values_1N: torch.Tensor) -> torch.Tensor:
        """Return (B, T, ...) values of (1, N, ...) ones; those of padding mean nothing."""
        return values_1N[0].index_select(0, self._token_BT).unflatten(0, (self.rows, self.width))

    def heads(self, states_1HND: torch.Tensor) -> torch.Tensor:
        """Return (B, H, T, D) queries, keys or values of (1, H, N, D) ones."""
        return self.rectangle(states_1HND.transpose(1, 2)).transpose(1, 2)

    def attended(
        self,
        attend: Callable[..., torch.Tensor],
        query_BHTD: torch.Tensor,
        keys_BHSD: torch.Tensor,
        values_BHSD: torch.Tensor,
        mask_B1TS: torch.Tensor,
    ) -> torch.Tensor:
        """Return what the queries of each batch attend to, (B, T, H, D); there are several batches.

        ``attend``: (queries, keys, values, additive mask, repeated=) -> (B, T, H, D), see
        :func:`specframe.model.attention.interface.masked_attention`.
        """
        if self._masks[0] is not mask_B1TS:
            self._masks = (
                mask_B1TS,
                [mask_B1TS[own, :, :width] for own, width in self._own],
                [[] for _ in self._own],
            )
        outputs = []
        for (own, width), mask, repeated in zip(self._own, *self._masks[1:], strict=True):
            with current_numerics.attending_rows(own, width):
                output = attend(query_BHTD[own, :, :width], keys_BHSD[own], values_BHSD[own], mask, repeated=repeated)
            outputs.append(F.pad(output, (0, 0, 0, 0, 0, self.width - width)))
        return torch.cat(outputs)

    def kept(self, keep: int) -> torch.Tensor | int:
        """Return the tokens whose logits the model is asked for: their numbers, (B * keep,), or 0 for all where these are fewer."""
        return self._last(keep) if self._heard[0] * keep < self.tokens else 0

    def logits(self, logits_1MV: torch.Tensor, keep: int) -> torch.Tensor:
        """Return the logits of each row's last ``keep`` places, (B, keep, V), of those that the model returned, (1, M, V)."""
        kept_MV, rows = logits_1MV[0], self._heard[0]
        if len(kept_MV) != rows * keep or rows * keep >= self.tokens:
            kept_MV = kept_MV.index_select(0, self._last(keep))
        return kept_MV.unflatten(0, (rows, keep))

    def _last(self, keep: int) -> torch.Tensor:
        """Return the numbers of the tokens in the last ``keep`` places of each row, (B * keep,)."""
        rows, end = self._heard
        return self._token_BT.view(self.rows, self.width)[:rows, end - keep : end].flatten()


@attrs.frozen(eq=False, slots=False)
class PaddingFreeBlock(Block):
    """A block of which it is known what is computed: one that a captured graph reads, or two blocks as one."""

    padding_free: PaddingFree | None = attrs.field(default=None, kw_only=True)
    """The places of the tokens that alone are computed, or None if all are."""


MANY = 1 << 40
"""Token slots of a block from which padding is left out wherever a model can be fed so."""


def pays(places: int, tokens: int, weights: int) -> bool:
    """Return whether a padding-free forward pays: of ``tokens`` real tokens in ``places``, with ``weights`` numbers in a layer."""
    padding = places - tokens
    return tokens > 0 and padding >= PADDING_FREE_PAYS * places and padding * weights >= LAYING_OUT


def fullest(places: int, leaves_out: Callable[[int, int], bool]) -> int:
    """Return the most tokens for which ``leaves_out(places, tokens)`` says that padding is left out, or 0 if it never is."""
    return bisect.bisect_right(range(1, places + 1), 0, key=lambda tokens: not leaves_out(places, tokens))


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
    def of(
        cls, first: Block, second: Block, places: tuple[Placement, Placement], room: int | None = None
    ) -> MixedBatch:
        """Return blocks with their places as one; logits are those of the first.

        With ``room`` for the tokens of a row of the second, all blocks of these rows that fit have the same shapes: a captured
        graph serves them.
        """
        chunk = room or second.width
        width, rows = max(first.width, chunk), (len(first.ids_BT), len(second.ids_BT))
        real_BT = np.zeros((sum(rows), width), dtype=bool)
        real_BT[: rows[0], : first.width], real_BT[rows[0] :, : second.width] = first.real, second.real
        groups = ((rows[0], first.width), (rows[1], chunk))
        tokens = None if room is None else rows[0] * first.width + rows[1] * room
        padding_free = PaddingFree(real_BT, first.ids_BT.device, tokens, groups)

        def widened(*both: torch.Tensor) -> torch.Tensor:
            parts = (part.expand(count, -1) for part, count in zip(both, rows, strict=True))
            return torch.cat([part[:, last_place(part.shape[1], width, part.device)] for part in parts])

        slots = max(one.key_index_BS.shape[1] for one in places)
        key_index_BS = [  # a batch sees none of the slots that it does not attend to
            F.pad(one.key_index_BS.expand(count, -1), (0, slots - one.key_index_BS.shape[1]), value=-1)
            for one, count in zip(places, rows, strict=True)
        ]
        first_written, second_written = places[0].written, places[1].written
        placement = Placement(
            widened(*(one.positions_BT for one in places)),
            widened(*(one.slots_BT for one in places)),
            widened(*(one.index_BT for one in places)),
            torch.cat(key_index_BS),
            sees_BTT=None if places[0].sees_BTT is None else sees(places[0].sees_BTT, rows, second.width, width),
            written=(lambda: first_written().with_rows(second_written())) if first_written and second_written else None,
        )
        block = PaddingFreeBlock(widened(first.ids_BT, second.ids_BT), padding_free=padding_free)
        return cls(block, placement, padding_free, first, second)

    def parted(self, scores: Scores) -> Scores:
        """Return the scores of the first block, with those of the second as ``mixed``."""
        rows, hidden = len(self.first.ids_BT), scores.hidden
        of_first = {number: states_BTD[:rows, : self.first.width] for number, states_BTD in hidden.items()}
        of_second = {number: states_BTD[rows:, : self.second.width] for number, states_BTD in hidden.items()}
        nothing = scores.logits_BTV.new_empty(len(self.second.ids_BT), 0, scores.logits_BTV.shape[-1])
        return Scores(scores.logits_BTV, of_first, mixed=Scores(nothing, of_second))


def last_place(width: int, wider: int, device: torch.device) -> torch.Tensor:
    """Return the places of a row, the last one repeated, (wider,)."""
    return torch.arange(wider, device=device).clamp(max=width - 1)


def sees(tree_BTT: torch.Tensor, rows: tuple[int, int], chunk: int, width: int) -> torch.Tensor:
    """Return whether places see places, (B, T, T), of trees and of a prefill chunk, which is a chain."""
    chain_TT = torch.ones(chunk, chunk, dtype=torch.bool, device=tree_BTT.device).tril()
    parts = []
    for part, count in ((tree_BTT, rows[0]), (chain_TT[None], rows[1])):
        at_T = last_place(part.shape[1], width, part.device)
        parts.append(part.expand(count, -1, -1)[:, at_T][:, :, at_T])
    return torch.cat(parts)
