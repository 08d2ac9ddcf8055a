"""Captured graphs: forwards that are captured once per shape and replayed, each by one launch of the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import attrs
import numpy as np
import torch

from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.graphs import Forward
from specframe.model.attention.masks import power_of_two
from specframe.model.padding_free import PaddingFree, PaddingFreeBlock
from specframe_std.graphs.captured_states import CapturedStates, StatesGraphs
from specframe_std.graphs.graph_cache import GraphCache, Outputs, Record, bucket

Shape = tuple[int, int, int | None]
"""Rows, tokens of each, and how many are computed of them all, or None for all."""


LONGEST = 32
"""Tokens per row up to which a forward is captured by their number. More tokens are prompts', whose numbers hardly repeat, and are
rounded up to a power of two."""

FEW = 64
"""Places of all rows up to which the tokens of each are rounded up to a power of two, so that drafts of different lengths share a
captured graph: a GPU takes as long for these as for one token of each row (Qwen3-8B on an H100: 12.8 ms for 48, 12.3 for 8)."""

PROMPTS = 256
"""Tokens up to which prompts are captured, padding included. A GPU computes about as many in the time in which it reads the weights
(an H100 295: 990 TFLOP/s over 3.35 TB/s), so padding costs nothing; more tokens take longer than the host does."""

PLACES = 4096
"""Places of the rectangle in which prompts attend, with the rows before theirs. Each takes a layer some kilobytes to fill: for more
of them that lasts as long as what a captured graph saves."""

MASKED = 2**25
"""Numbers of the mask of such a rectangle: 64 MB in half precision."""

EAGER = 3
"""Times that prompts of a shape are read before it is captured: capturing takes as long as this many replays save. Shapes of
rounds are captured the second time they come up, for they come up again at once."""


@attrs.frozen(eq=False)
class Buffers:
    """The inputs of one captured graph: ids and placement of R rows, T tokens each, that attend to S slots."""

    ids_RT: torch.Tensor
    placement: Placement
    spare: int
    extra: dict[str, torch.Tensor]
    """Further inputs of the model, (R, T, ...) each."""
    padding_free: PaddingFree | None = None
    """The places of the tokens that are computed, or None if all are."""
    states: CapturedStates | None = None
    """The states of layers that keep one, or None if no layer does."""

    @classmethod
    def of(
        cls,
        block: Block,
        placement: Placement,
        shape: tuple[int, int],
        extent: int,
        spare: int,
        padding_free: PaddingFree | None = None,
        states: CapturedStates | None = None,
    ) -> Buffers:
        """Return buffers for a forward like this one in a larger bucket of rows and tokens, which take over the last two."""
        device, (rows, width) = block.ids_BT.device, shape
        keys = len(placement.key_index_BS) if len(placement.key_index_BS) == 1 else rows
        ids_RT, positions_RT, slots_RT, index_RT = torch.zeros(4, rows, width, dtype=torch.long, device=device)
        key_index_RS = torch.zeros(keys, extent, dtype=torch.long, device=device)
        sees_RTT = None
        if placement.sees_BTT is not None:
            sees_RTT = torch.zeros(rows, width, width, dtype=torch.bool, device=device)
        extra = {name: values.new_zeros(rows, width, *values.shape[2:]) for name, values in block.extra.items()}
        empty = Placement(positions_RT, slots_RT, index_RT, key_index_RS, placement.in_order, sees_RTT, first_row=0)
        return cls(ids_RT, empty, spare, extra, padding_free, states)

    def fill(self, block: Block, given: Placement, padding_free: PaddingFree | None = None, first: int = 0) -> None:
        """Write a forward's inputs from row ``first`` on; other rows, slots beyond and places before theirs are padding."""
        if self.padding_free is not None and padding_free is not None and padding_free is not self.padding_free:
            self.padding_free.take(padding_free)
        mine, ids_BT = self.placement, block.ids_BT
        pairs = (
            (self.ids_RT, ids_BT, 0),
            *((buffer, block.extra[name], 0) for name, buffer in self.extra.items()),
            (mine.positions_BT, given.positions_BT, 0),
            (mine.slots_BT, given.slots_BT, self.spare),
            (mine.index_BT, given.index_BT, -1),
            (mine.sees_BTT, given.sees_BTT, False),
        )
        end, before = first + len(ids_BT), self.ids_RT.shape[1] - ids_BT.shape[1]
        for buffer, values, padding in pairs:
            if buffer is not None and values is not None:
                buffer[first:end, before:].copy_(values)
                if before:
                    buffer[first:end, :before].fill_(padding)
                if first:
                    buffer[:first].fill_(padding)
                if end < len(buffer):
                    buffer[end:].fill_(padding)
        if not mine.in_order:
            keys, extent = given.key_index_BS.shape
            row = first if keys > 1 else 0
            mine.key_index_BS.fill_(-1)
            mine.key_index_BS[row : row + keys, :extent].copy_(given.key_index_BS)
        if self.states is not None:
            self.states.fill()


@attrs.define(eq=False)
class CapturedForward:
    """A forward over one slab that is captured the second time a shape comes up.

    A captured graph reads its inputs from buffers that never move and writes its output to one, so shapes are rounded up to
    buckets: rows to a power of two, attended slots to an eighth of their power of two, the tokens of short prompts to a power of
    two. What pads a bucket writes to the spare slot that ends each row of the slab, where no query looks.
    """

    forward: Forward
    """The forward of the run under way; those of all runs compute the same."""
    _rows: int
    _slots: int
    """Slots of the slab's rows, the spare slot included."""
    _record: Record
    _pack: bool = False
    """Whether it attends by lengths alone, to all slots, where the placement has them."""
    _leaves_out: Callable[[int, int], bool] = lambda places, tokens: False
    """(places, tokens) -> whether only the real tokens are computed."""
    _any_row: bool = False
    """Whether the store's forwards may begin before the batch's first row: prompts of any row are captured then."""
    _states: StatesGraphs | None = None
    """The states of layers that keep one. Their graphs have as many rows and tokens as a block has: there is no spare state."""
    graphs: GraphCache = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.graphs = GraphCache(self._record)

    def __call__(
        self, block: Block, placement: Placement, keep: int, hidden: tuple[int, ...] = (), first: int = 0
    ) -> Scores:
        """Return the scores of the last ``keep`` tokens of a block, with the hidden states of these numbers.

        ``first`` is the slab's row of the block's first.
        """
        packed = self._pack and placement.in_order and placement.sees_BTT is None
        extent = 0 if packed else min(bucket(placement.key_index_BS.shape[1]), self._slots)
        if self._states is None:
            told, shape = None, self._shape(block, placement, extent, first)
        else:
            told = self._states.kind()
            shape = None if told is None or block.width > LONGEST else (len(block.ids_BT), block.width, None)
        if shape is None:
            return self.forward(block, placement, keep, hidden)
        rows, width, tokens = shape
        both = mixed(block)
        kept = width if keep == block.width else keep
        if not packed:
            placement = attrs.evolve(placement, in_order=False)

        def prepare() -> tuple[Buffers, Callable[[], Outputs]]:
            padding_free = in_bucket(block, shape, first)
            states = self._states.begun() if self._states else None
            buffers = Buffers.of(block, placement, (rows, width), extent, self._slots - 1, padding_free, states)
            buffers.fill(block, placement, padding_free, first)

            def run() -> Outputs:
                whole = PaddingFreeBlock(buffers.ids_RT, extra=buffers.extra, padding_free=buffers.padding_free)
                with states.reading() if states else contextlib.nullcontext():
                    scores = self.forward(whole, buffers.placement, kept, hidden)
                return scores.logits_BTV, *(scores.hidden[number] for number in hidden)

            return buffers, run

        several, tree = len(placement.key_index_BS) > 1, placement.sees_BTT is not None
        key = rows, width, extent, kept, several, tree, tokens, both and both.groups, told, hidden, *block.extra
        found = self.graphs.take(key, prepare, EAGER if first or block.width > LONGEST else 1)
        if found is None:
            return self.forward(block, placement, keep, hidden)
        found.buffers.fill(block, placement, in_bucket(block, shape, first), first)
        logits_BTV, *states = (output[first:] for output in found.recording.replay(first + len(block.ids_BT)))
        if found.buffers.states is not None:
            found.buffers.states.give()
        own = [states_BTD[:, width - block.width :] for states_BTD in states]
        return Scores(logits_BTV[:, kept - keep :], dict(zip(hidden, own, strict=True)), tokens or rows * width)

    def _shape(self, block: Block, placement: Placement, extent: int, first: int) -> Shape | None:
        """Return the rows, the width and the computed tokens of a block's captured graph, or None if it is not captured."""
        if (both := mixed(block)) is not None:
            rows, width = block.ids_BT.shape
            fits = not first and rows * width <= PLACES and rows * width * extent <= MASKED
            return (rows, width, both.tokens) if fits else None
        rows, width = min(power_of_two(first + len(block.ids_BT)), self._rows), block.width
        if first and (placement.sees_BTT is not None or not self._any_row):
            return None
        if placement.sees_BTT is not None:
            return rows, width, self._tokens(block, rows, width)
        width = power_of_two(width)
        if block.width <= LONGEST and not first:
            width = width if rows * width <= FEW else block.width
            return rows, width, self._tokens(block, rows, width)
        if rows * width <= PROMPTS:
            return rows, width, None
        tokens = power_of_two(block.tokens + rows - len(block.ids_BT))
        fits = tokens <= PROMPTS and rows * width <= PLACES and rows * width * extent <= MASKED
        return (rows, width, tokens) if fits and self._leaves_out(rows * width, tokens) else None

    def _tokens(self, block: Block, rows: int, width: int) -> int | None:
        """Return how many tokens a captured graph of this shape computes: a bucket of real tokens, or None for all.

        Rows that pad the bucket have one token each, which is written to their own spare slot.
        """
        if block.counts is None:
            return None
        tokens = bucket(block.tokens + rows - len(block.ids_BT), 8)
        return tokens if self._leaves_out(rows * width, tokens) else None


def mixed(block: Block) -> PaddingFree | None:
    """Return the places of the real tokens of a mixed batch, or None where there is one batch."""
    return block.padding_free if isinstance(block, PaddingFreeBlock) else None


def in_bucket(block: Block, shape: Shape, first: int) -> PaddingFree | None:
    """Return the places of the tokens of a captured graph of this shape, the block's from a row on, or None if all are computed."""
    if (both := mixed(block)) is not None:
        return both
    rows, width, tokens = shape
    if tokens is None:
        return None
    real_RT = np.zeros((rows, width), dtype=bool)
    real_RT[:, 0] = True
    own = slice(first, first + len(block.ids_BT))
    real_RT[own] = False
    real_RT[own, width - block.width :] = block.real
    return PaddingFree(real_RT, block.ids_BT.device, tokens)
