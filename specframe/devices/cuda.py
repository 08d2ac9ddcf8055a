"""CUDA graphs, events of a device's queue, and settings for products and for attention."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from weakref import WeakValueDictionary

import torch

from specframe.devices.held import Held


class GraphPool:
    """The memory that all graphs of a device share, for no two run at once and outputs are copied before the next runs.

    torch gives the memory up with its last graph, and refuses to record into it from then on, so graphs hold their pool and a later
    one gets a new one.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()


class CudaGraph:
    """A CUDA graph. The function is called twice: once for the first replay, and once for the graph."""

    _pools: WeakValueDictionary[torch.device, GraphPool] = WeakValueDictionary()
    _turn = threading.RLock()
    """Held while a graph is captured, and from a replay until its outputs are copied: other threads replay graphs of the same
    pool, and all are captured on one stream."""

    def __init__(self, function: Callable[[], tuple[torch.Tensor, ...]]) -> None:
        self._first: tuple[torch.Tensor, ...] | None = function()  # libraries choose their kernels meanwhile
        device = self._first[0].device
        aside = stream(device)
        with CudaGraph._turn, torch.cuda.device(device):
            current = torch.cuda.current_stream()
            aside.wait_stream(current)
            pool = CudaGraph._pools.setdefault(device, GraphPool())
            self._graph = torch.cuda.CUDAGraph()
            mode = "thread_local"  # other threads may allocate meanwhile
            recorded = torch.cuda.graph(self._graph, pool.handle, aside, mode)
            try:
                with torch.cuda.stream(aside), recorded:  # torch leaves the stream set where a captured graph fails
                    self._outputs = function()
            except BaseException:
                CudaGraph._pools.pop(device, None)
                usable_again(torch.cuda.default_generators[device.index])
                raise
            finally:
                current.wait_stream(aside)
        self._pool = pool  # the last attribute goes last

    def replay(self, rows: int) -> tuple[torch.Tensor, ...]:
        """Launch the graph; the first time what was computed before it was captured is there already."""
        if (first := self._first) is not None:
            self._first = None
            return tuple(output[:rows].clone() for output in first)
        with CudaGraph._turn:
            self._graph.replay()
            return tuple(output[:rows].clone() for output in self._outputs)


@functools.cache
def stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which graphs of a device are captured: one, as libraries hold working memory for each."""
    return torch.cuda.Stream(device)


def usable_again(generator: torch.Generator) -> None:
    """Have a generator draw numbers after a captured graph that failed: torch leaves its state marked as being captured."""
    generator.graphsafe_set_state(generator.clone_state())


class DeviceEvent:
    """A CUDA event in the queue of one device, whichever is the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._event = device, torch.cuda.Event(enable_timing=True)

    def record(self) -> None:
        """Set the mark after everything queued so far."""
        self._event.record(torch.cuda.current_stream(self._device))

    def query(self) -> bool:
        """Return whether the device has passed the mark."""
        return self._event.query()

    def synchronize(self) -> None:
        """Wait for the mark."""
        self._event.synchronize()

    def elapsed_time(self, end_event: DeviceEvent) -> float:
        """Return the milliseconds from this mark to a later one."""
        return self._event.elapsed_time(end_event._event)


def in_full_precision() -> Callable[[], None]:
    """Switch off TF32, sums in half precision and split sums; return the function that puts back what was there before.

    Of torch's libraries for products cuBLASLt alone has a setting not to split sums; torch refuses to ask the others.
    """
    kernels, library = torch.backends.cuda.matmul, torch.backends.cuda.preferred_blas_library()
    names = [f"allow_{kind}_reduced_precision_reduction" for kind in ("bf16", "fp16")]
    before = {name: (getattr(kernels, name), getattr(kernels, f"{name}_split_k")) for name in names}
    tf32 = kernels.allow_tf32

    def put_back() -> None:
        torch.backends.cuda.preferred_blas_library(library)
        kernels.allow_tf32 = tf32
        for name, value in before.items():
            setattr(kernels, name, value)

    torch.backends.cuda.preferred_blas_library("cublaslt")
    kernels.allow_tf32 = False
    for name in names:
        setattr(kernels, name, (False, False))
    return put_back


def without_plans() -> Callable[[], None]:
    """Keep attention away from cuDNN; return the function that puts back what was there before.

    torch asks cuDNN first on Hopper and Blackwell. It builds a plan for every new shape, which takes 50 ms and more, and a cache
    has another length in every round.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    return lambda: torch.backends.cuda.enable_cudnn_sdp(before)


PRECISE, ANY_SHAPE = Held(in_full_precision), Held(without_plans)
