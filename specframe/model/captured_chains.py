"""The steps of a chain of a draft model, captured: each is fed the token chosen after the one before it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Block, Scores
from specframe.contracts.roles import Layout
from specframe.contracts.round import Batch
from specframe.devices.kinds import CapturedGraph
from specframe.model.captured_forwards import LONGEST, Forward
from specframe.model.graph_cache import GraphCache, KeptGraph, Outputs, bucket, power_of_two

Choose = Callable[[Batch, int, torch.Tensor], torch.Tensor]
"""Chooses the token at the place ``offset`` after each row's end: (batch, offset, logits (B, 1, V)) -> (B, 1)."""


class Still(Batch):
    """A batch whose tensors never move: its rows have their lengths on the device alone, up to those on the host."""

    @property
    def even(self) -> None:
        """None: the host does not know the rows' lengths."""


@attrs.frozen(eq=False)
class StepBuffers:
    """The inputs of one captured step: the T tokens that R rows end with, and a batch whose tensors never move."""

    ids_RT: torch.Tensor
    batch: Batch
    live_R1: torch.Tensor | None
    """Whether a row is one of the batch's, or None if there is one row alone."""

    @classmethod
    def of(cls, batch: Batch, width: int, rows: int, extent: int) -> StepBuffers:
        """Return buffers for so many rows of up to ``extent`` tokens; rows after the batch's are padding."""
        ids_RT = batch.lengths_B.new_zeros(rows, width)
        still = Still(
            (batch.sequences * rows)[:rows],
            batch.tokens_BS,
            batch.lengths_B.new_full((rows,), width),
            batch.tokens,
            np.full(rows, extent),
            batch.limits,
            batch.streams_B.new_zeros(rows),
            batch.prefill,
        )
        return cls(ids_RT, still, torch.zeros_like(ids_RT[:, :1], dtype=torch.bool) if rows > 1 else None)

    def fill(self, batch: Batch, ids_BT: torch.Tensor, offset: int) -> None:
        """Write the inputs of the step whose tokens end ``offset`` places after each row's length."""
        rows = len(batch)
        self.ids_RT[:rows].copy_(ids_BT)
        self.batch.lengths_B[:rows].copy_(batch.lengths_B).add_(offset)
        self.batch.streams_B[:rows].copy_(batch.streams_B)
        if self.live_R1 is not None:
            self.live_R1[:rows].fill_(True)
            self.live_R1[rows:].fill_(False)

    def go_on(self, ids_B1: torch.Tensor) -> None:
        """Write the inputs of the step after the one that was replayed last."""
        self.ids_RT[: len(ids_B1)].copy_(ids_B1)
        self.batch.lengths_B.add_(1)


class CapturedChain:
    """The steps of chains. A step is a forward and the choice after it, captured as one.

    A step depends on the rows' lengths on the device, which grow by one from one step to the next: chains of any number of steps
    replay the same captured graphs. The layout has to be one whose places follow from lengths (``static``).

    Args:
        forward: one of the forwards.
        layout: tells where tokens go.
        rows, slots: of the slab, the spare slot included.
        record: makes a captured graph.
        pack: whether it attends by lengths alone, to all slots.
    """

    def __init__(
        self,
        forward: Forward,
        layout: Layout,
        rows: int,
        slots: int,
        record: Callable[..., CapturedGraph],
        pack: bool = False,
    ) -> None:
        self._forward, self._layout, self._rows, self._slots, self._pack = forward, layout, rows, slots, pack
        self._choose: Choose | None = None
        """What chose the tokens last."""
        self._earlier = False
        """Whether that was in an earlier run."""
        self.graphs = GraphCache(record)

    def begin(self, forward: Forward, layout: Layout) -> None:
        """Take the forward and the layout of another run, which give the same."""
        self._forward, self._layout, self._earlier = forward, layout, True

    def __call__(self, batch: Batch, ids_BT: torch.Tensor, count: int, choose: Choose) -> tuple[torch.Tensor, int]:
        """Return the tokens chosen, (B, count), and how many tokens forwards have computed for them."""
        self._chosen_by(choose)
        rows, last = min(power_of_two(len(batch)), self._rows), self._slots - 1
        extent = last if self._pack else min(bucket(batch.longest + count - 1), last)
        chosen, computed, before = [], 0, None
        for offset in range(count):
            found = self._step(batch, ids_BT, offset, choose, rows, extent)
            computed += (rows if found else len(batch)) * ids_BT.shape[1]
            if found is None:
                logits_B1V = self._scored(batch, Block(ids_BT, offset - ids_BT.shape[1]))
                ids_BT = choose(batch, offset, logits_B1V)
            else:
                if found is before:
                    found.buffers.go_on(ids_BT)
                else:
                    found.buffers.fill(batch, ids_BT, offset)
                ids_BT = found.recording.replay(len(batch))[0]
            chosen.append(ids_BT)
            before = found
        return torch.cat(chosen, dim=1), computed

    def _step(
        self, batch: Batch, ids_BT: torch.Tensor, offset: int, choose: Choose, rows: int, extent: int
    ) -> KeptGraph | None:
        """Return the captured graph of a step, which is made with the inputs of this one, or None if there is none."""
        width = ids_BT.shape[1]
        if width > min(LONGEST, int(batch.lengths.min()) + offset):
            return None

        def prepare() -> tuple[StepBuffers, Callable[[], Outputs]]:
            buffers = StepBuffers.of(batch, width, rows, extent)
            buffers.fill(batch, ids_BT, offset)
            return buffers, functools.partial(self._again, buffers, choose, self._layout)

        return self.graphs.take((rows, width, extent), prepare)

    def _chosen_by(self, choose: Choose) -> None:
        """Let go of an earlier run's captured graphs where the tokens of this one are chosen otherwise."""
        if self._earlier and choose != self._choose:
            self.graphs.clear()
        self._choose, self._earlier = choose, False

    def _again(self, buffers: StepBuffers, choose: Choose, layout: Layout) -> Outputs:
        """Return the tokens chosen after what is in the buffers; a captured graph holds what this is called with."""
        batch, width = buffers.batch, buffers.ids_RT.shape[1]
        block = Block(buffers.ids_RT, -width)
        placement = layout.place(batch, block)
        if buffers.live_R1 is not None:  # the other rows may be those of sequences that are not in the batch
            spared_BT = placement.slots_BT.where(buffers.live_R1, self._slots - 1)
            placement = attrs.evolve(placement, slots_BT=spared_BT)
        return (choose(batch, 0, self._forward(block, placement, 1).logits_BTV),)

    def _scored(self, batch: Batch, block: Block) -> torch.Tensor:
        return self._forward(block, self._layout.place(batch, block), 1).logits_BTV


def chain(
    step: Callable[[Block], Scores], batch: Batch, ids_BT: torch.Tensor, count: int, choose: Choose
) -> torch.Tensor:
    """Feed tokens that end at each row's length, then ``count - 1`` times the chosen tokens; return all chosen tokens, (B, count).

    ``step`` feeds a block and returns the scores of its last token. A choice of no token, (B, 0), ends the chain.
    """
    chosen = [ids_BT[:, :0]]
    for offset in range(count):
        ids_BT = choose(batch, offset, step(Block(ids_BT, offset - ids_BT.shape[1])).logits_BTV)
        chosen.append(ids_BT)
        if not ids_BT.shape[1]:
            break
    return torch.cat(chosen, dim=1)
