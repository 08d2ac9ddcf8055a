"""Forwards recorded once per shape and replayed: a decoding round then costs the host one launch per model forward.

A recording reads its inputs from buffers that never move and writes its output to one, so the shapes of a round are rounded up to
buckets: rows to a power of two, attended slots to an eighth of their power of two. What pads a bucket writes to the spare slot that
ends each row of a slab, where no query looks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

import attrs
import torch

from specframe.types import Placement

Forward = Callable[[torch.Tensor, Placement, int], torch.Tensor]
"""(ids_BT, placement, keep) -> logits (B, keep, V)."""

LONGEST = 32
"""Tokens per row from which a forward reads prompts: those shapes hardly repeat, and are not recorded."""


class Recording(Protocol):
    """A function of no arguments, executed; :meth:`replay` executes it again on what its buffers hold now."""

    output: torch.Tensor

    def replay(self) -> None:
        """Write the output anew."""


class CudaRecording:
    """A CUDA graph. All graphs share one memory pool, for no two run at once and outputs are copied."""

    _pool: Any = None

    def __init__(self, function: Callable[[], torch.Tensor]) -> None:
        current, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for _ in range(2):  # libraries choose their kernels, and allocate what they need, before the recording
                function()
        current.wait_stream(aside)
        if CudaRecording._pool is None:
            CudaRecording._pool = torch.cuda.graph_pool_handle()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=CudaRecording._pool):
            self.output = function()

    def replay(self) -> None:
        """Launch the graph."""
        self._graph.replay()


class EagerRecording:
    """The same contract without a graph, for devices that have none: shows that buffers and buckets are right."""

    def __init__(self, function: Callable[[], torch.Tensor]) -> None:
        self._function = function
        self.output = function().clone()

    def replay(self) -> None:
        """Call the function again."""
        self.output.copy_(self._function())


@attrs.frozen(eq=False)
class Buffers:
    """The inputs of one recording: ids and placement of R rows, T tokens each, that attend to S slots."""

    ids_RT: torch.Tensor
    placement: Placement
    spare: int

    @classmethod
    def of(cls, ids_BT: torch.Tensor, placement: Placement, rows: int, extent: int, spare: int) -> Buffers:
        """Return buffers for a forward like this one in a larger bucket."""
        device, width = ids_BT.device, ids_BT.shape[1]
        keys = len(placement.key_order_BS) if len(placement.key_order_BS) == 1 else rows
        used_R = None if placement.used_B is None else torch.zeros(rows, dtype=torch.int32, device=device)
        ids_RT, positions_RT, slots_RT, order_RT = torch.zeros(4, rows, width, dtype=torch.long, device=device)
        key_order_RS = torch.zeros(keys, extent, dtype=torch.long, device=device)
        return cls(ids_RT, Placement(positions_RT, slots_RT, order_RT, key_order_RS, used_R), spare)

    def fill(self, ids_BT: torch.Tensor, given: Placement) -> None:
        """Write a forward's inputs; rows and slots beyond them are padding."""
        mine, width = self.placement, ids_BT.shape[1]
        pairs = (
            (self.ids_RT, ids_BT, 0),
            (mine.positions_BT, given.positions_BT, 0),
            (mine.slots_BT, given.slots_BT, self.spare),
            (mine.order_BT, given.order_BT, -1),
            (mine.used_B, given.used_B, width),
        )
        rows = len(ids_BT)
        for buffer, values, padding in pairs:
            if buffer is not None and values is not None:
                buffer[:rows].copy_(values)
                if rows < len(buffer):
                    buffer[rows:].fill_(padding)
        if mine.used_B is None:
            keys, extent = given.key_order_BS.shape
            mine.key_order_BS.fill_(-1)
            mine.key_order_BS[:keys, :extent].copy_(given.key_order_BS)


class Recorded:
    """A forward over one slab that is recorded the second time a shape comes up.

    Args:
        forward: what is recorded.
        rows, slots: of the slab, the spare slot included.
        record: makes a recording.
        pack: whether it attends by lengths alone, to all slots, where the placement has them.
    """

    def __init__(
        self, forward: Forward, rows: int, slots: int, record: Callable[..., Recording], pack: bool = False
    ) -> None:
        self._forward, self._rows, self._slots, self._record, self._pack = forward, rows, slots, record, pack
        self._seen: set[tuple[int, ...]] = set()
        self._recordings: dict[tuple[int, ...], tuple[Buffers, Recording]] = {}
        self._given_up = False

    def __call__(self, ids_BT: torch.Tensor, placement: Placement, keep: int) -> torch.Tensor:
        """Return the logits (B, keep, V) of the last ``keep`` tokens."""
        width = ids_BT.shape[1]
        rows = min(power_of_two(len(ids_BT)), self._rows)
        packed = self._pack and placement.used_B is not None
        if not packed:
            placement = attrs.evolve(placement, used_B=None)
        extent = 0 if packed else min(bucket(placement.key_order_BS.shape[1]), self._slots)
        key = rows, width, extent, keep, len(placement.key_order_BS) > 1
        if self._given_up or width > LONGEST or key not in self._seen:
            self._seen.add(key)
            return self._forward(ids_BT, placement, keep)
        if key not in self._recordings:
            buffers = Buffers.of(ids_BT, placement, rows, extent, self._slots - 1)
            buffers.fill(ids_BT, placement)
            try:
                recording = self._record(lambda: self._forward(buffers.ids_RT, buffers.placement, keep))
            except RuntimeError as error:
                self._give_up(error)
                return self._forward(ids_BT, placement, keep)
            self._recordings[key] = buffers, recording
        buffers, recording = self._recordings[key]
        buffers.fill(ids_BT, placement)
        recording.replay()
        return recording.output[: len(ids_BT)].clone()

    def _give_up(self, error: RuntimeError) -> None:
        """Let go of all recordings and go on without: the memory is short, or the model does what cannot be recorded."""
        self._given_up = True
        self._recordings.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        reason = str(error).partition("\n")[0]
        warnings.warn(f"forwards are not recorded as CUDA graphs: {reason}", RuntimeWarning, stacklevel=2)


def power_of_two(number: int) -> int:
    """Return the least power of two that is not less."""
    return 1 << (number - 1).bit_length()


def bucket(slots: int) -> int:
    """Return the extent that many slots are rounded up to: an eighth of their power of two, 64 at least."""
    step = max(64, power_of_two(slots) // 8)
    return -(-slots // step) * step


RECORDINGS: dict[str, Callable[[torch.device], Callable[..., Recording] | None]] = {
    "auto": lambda device: CudaRecording if device.type == "cuda" else None,
    "on": lambda device: CudaRecording if device.type == "cuda" else EagerRecording,
    "off": lambda device: None,
}
"""What ``graphs=`` means on a device."""
