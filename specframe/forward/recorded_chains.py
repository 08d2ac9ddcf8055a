"""Several forwards recorded as one, each fed the token chosen after the one before it: a chain of a draft model."""

from __future__ import annotations

import functools
from collections.abc import Callable

import attrs
import numpy as np
import torch

from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Block
from specframe.contracts.layout import Layout
from specframe.contracts.round import Batch
from specframe.contracts.run import Choose
from specframe.devices.kinds import Recording
from specframe.forward.graphs import LONGEST, Forward, Outputs, RecordingCache, bucket, power_of_two


class Still(Batch):
    """A batch whose tensors never move: its rows have their lengths on the device alone, up to those on the host."""

    @property
    def even(self) -> None:
        """None: the host does not know the rows' lengths."""


@attrs.frozen(eq=False)
class ChainBuffers:
    """The inputs of one recorded chain: the first T tokens fed to R rows, and a batch whose tensors never move."""

    ids_RT: torch.Tensor
    batch: Batch
    live_R1: torch.Tensor | None
    """Whether a row is one of the batch's; None: all are."""

    @classmethod
    def of(cls, batch: Batch, width: int, rows: int, extent: int) -> ChainBuffers:
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
        padded = rows > len(batch)
        return cls(ids_RT, still, torch.zeros_like(ids_RT[:, :1], dtype=torch.bool) if padded else None)

    def fill(self, batch: Batch, ids_BT: torch.Tensor) -> None:
        """Write a chain's inputs."""
        rows = len(batch)
        self.ids_RT[:rows].copy_(ids_BT)
        self.batch.lengths_B[:rows].copy_(batch.lengths_B)
        self.batch.streams_B[:rows].copy_(batch.streams_B)
        if self.live_R1 is not None:
            self.live_R1[:rows].fill_(True)
            self.live_R1[rows:].fill_(False)


class RecordedChain:
    """Several forwards in one recording; each is fed the tokens chosen after the previous one.

    Everything they need follows from the rows' lengths on the device, so the layout has to be one whose places do (``static``).

    Args:
        forward: one of the forwards.
        layout: tells where tokens go.
        rows, slots: of the slab, the spare slot included.
        record: makes a recording.
        pack: whether it attends by lengths alone, to all slots.
    """

    def __init__(
        self,
        forward: Forward,
        layout: Layout,
        rows: int,
        slots: int,
        record: Callable[..., Recording],
        pack: bool = False,
    ) -> None:
        self._forward, self._layout, self._rows, self._slots, self._pack = forward, layout, rows, slots, pack
        self._choose: Choose | None = None
        """What chose the tokens last."""
        self._earlier = False
        """Whether that was in an earlier run."""
        self.recordings = RecordingCache(record)

    def begin(self, forward: Forward, layout: Layout) -> None:
        """Take the forward and the layout of another run, which give the same."""
        self._forward, self._layout, self._earlier = forward, layout, True

    def __call__(self, batch: Batch, ids_BT: torch.Tensor, count: int, choose: Choose) -> tuple[torch.Tensor, int]:
        """Return the tokens chosen, (B, count), and in how many rows forwards have computed them."""
        self._chosen_by(choose)
        width, rows = ids_BT.shape[1], min(power_of_two(len(batch)), self._rows)
        extent = self._slots - count if self._pack else min(bucket(batch.longest), self._slots - count)

        def prepare() -> tuple[ChainBuffers, Callable[[], Outputs]]:
            buffers = ChainBuffers.of(batch, width, rows, extent)
            buffers.fill(batch, ids_BT)
            return buffers, functools.partial(self._again, buffers, count, choose, self._layout)

        found = None
        if width <= min(LONGEST, int(batch.lengths.min())):
            found = self.recordings.take((rows, width, count, extent, rows > len(batch)), prepare)
        if found is None:
            return self._run(batch, ids_BT, count, choose, self._layout), len(batch)
        found.buffers.fill(batch, ids_BT)
        return found.recording.replay(len(batch))[0], rows

    def _chosen_by(self, choose: Choose) -> None:
        """Let go of an earlier run's recordings where the tokens of this one are chosen otherwise."""
        if self._earlier and choose != self._choose:
            self.recordings.clear()
        self._choose, self._earlier = choose, False

    def _again(self, buffers: ChainBuffers, count: int, choose: Choose, layout: Layout) -> Outputs:
        """Return the tokens chosen after what is in the buffers; a recording holds what this is called with."""
        return (self._run(buffers.batch, buffers.ids_RT, count, choose, layout, buffers),)

    def _run(
        self,
        batch: Batch,
        ids_BT: torch.Tensor,
        count: int,
        choose: Choose,
        layout: Layout,
        buffers: ChainBuffers | None = None,
    ) -> torch.Tensor:
        def step(block: Block) -> torch.Tensor:
            placement = layout.place(batch, block)
            if buffers is not None:
                placement = self._still(placement, buffers)
            return self._forward(block, placement, 1).logits_BTV

        return chain(step, batch, ids_BT, count, choose)

    def _still(self, placement: Placement, buffers: ChainBuffers) -> Placement:
        """Return a placement for every replay: lengths are known on the device alone, and rows that are not live write nothing."""
        slots_BT, live_R1 = placement.slots_BT, buffers.live_R1
        if live_R1 is not None:  # the other rows may be those of sequences that are not in the batch
            slots_BT = slots_BT.where(live_R1, self._slots - 1)
        return attrs.evolve(placement, slots_BT=slots_BT)


def chain(
    step: Callable[[Block], torch.Tensor], batch: Batch, ids_BT: torch.Tensor, count: int, choose: Choose
) -> torch.Tensor:
    """Feed tokens that end at each row's length, then ``count - 1`` times the chosen tokens; return all chosen tokens, (B, count).

    ``step`` is (block) -> logits (B, 1, V). A choice of no token, (B, 0), ends the chain.
    """
    chosen = [ids_BT[:, :0]]
    for offset in range(count):
        ids_BT = choose(batch, offset, step(Block(ids_BT, offset - ids_BT.shape[1])))
        chosen.append(ids_BT)
        if not ids_BT.shape[1]:
            break
    return torch.cat(chosen, dim=1)
