"""CUDA graphs, and products in full precision."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


class CudaRecording:
    """A CUDA graph. All graphs share one memory pool, for no two run at once and outputs are copied before the next runs."""

    _pool: Any = None
    _turn = threading.Lock()
    """Held from a replay until its outputs are copied: other threads replay graphs of the same pool."""

    def __init__(self, function: Callable[[], tuple[torch.Tensor, ...]]) -> None:
        current, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for _ in range(2):  # libraries choose their kernels, and allocate what they need, before the recording
                function()
        current.wait_stream(aside)
        if CudaRecording._pool is None:
            CudaRecording._pool = torch.cuda.graph_pool_handle()
        self._graph = torch.cuda.CUDAGraph()
        # other threads may allocate meanwhile
        with torch.cuda.graph(self._graph, pool=CudaRecording._pool, capture_error_mode="thread_local"):
            self._outputs = function()

    def replay(self, rows: int) -> tuple[torch.Tensor, ...]:
        """Launch the graph."""
        with CudaRecording._turn:
            self._graph.replay()
            return tuple(output[:rows].clone() for output in self._outputs)


@contextlib.contextmanager
def precise() -> Iterator[None]:
    """Switch off TF32, sums in half precision and split sums inside the block, in every thread."""
    kernels = torch.backends.cuda.matmul
    names = [f"allow_{kind}_reduced_precision_reduction" for kind in ("bf16", "fp16")]
    before = {name: (getattr(kernels, name), getattr(kernels, f"{name}_split_k")) for name in names}
    tf32 = kernels.allow_tf32
    try:
        kernels.allow_tf32 = False
        for name in names:
            setattr(kernels, name, (False, False))
        yield
    finally:
        kernels.allow_tf32 = tf32
        for name, value in before.items():
            setattr(kernels, name, value)
