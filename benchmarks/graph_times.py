"""Graphs that pipelines record, and what a profiler sees of the device while they are replayed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from specframe_std.graphs import kept_graphs
from specframe_std.graphs.graph_cache import recorder
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from specframe.devices import kinds


@attrs.define(eq=False)
class Graph:
    """A captured function, and what was replayed of it."""

    function: Callable[[], Any]
    recording: Any
    replays: int = 0
    rows: int = 0
    """The most that were asked for."""
    outputs: tuple[torch.Tensor, ...] = ()
    """Those of the last replay."""

    def replay(self, rows: int) -> tuple[torch.Tensor, ...]:
        """Replay the graph."""
        self.replays, self.rows, self.outputs = self.replays + 1, max(self.rows, rows), self.recording.replay(rows)
        return self.outputs

    @property
    def places(self) -> int:
        """The places of each row that its logits are of; 0 of a whole round, which returns tokens first."""
        return self.outputs[0].shape[1] if self.outputs[0].is_floating_point() else 0


@contextlib.contextmanager
def graphs(made: list[Graph]) -> Iterator[None]:
    """Add the graphs that pipelines with ``graphs="on"`` record inside the block to a list."""
    usual = kept_graphs.recorder

    def watched(device: torch.device) -> Callable[..., Any]:
        record: Any = usual(device)

        def recorded(function: Callable[[], tuple[torch.Tensor, ...]]) -> Graph:
            made.append(Graph(function, record(function)))
            return made[-1]

        return recorded

    kept_graphs.recorder = watched
    try:
        yield
    finally:
        kept_graphs.recorder = usual


def nodes(graph: Graph, device: torch.device) -> int | None:
    """Return the nodes of a graph, or None where they cannot be counted. On CUDA it is recorded once more, and kept."""
    if device.type == "sim":
        return len(graph.recording._tape.steps)
    try:
        from cuda.bindings import runtime

        kept = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.inference_mode(), torch.cuda.graph(kept, capture_error_mode="thread_local"):
            graph.function()
        return runtime.cudaGraphGetNodes(runtime.cudaGraph_t(init_value=kept.raw_cuda_graph()))[2]
    except Exception:  # there are no bindings, or no CUDA: the profiler counts kernels, too
        return None


def recorded(function: Callable[[], torch.Tensor], device: torch.device) -> Callable[[], Any]:
    """Return what replays a function, which is recorded now where the device has graphs."""
    record: Any = recorder(device)
    recording = record(lambda: (function(),))
    recording.replay(1)  # the result of the first replay is there already
    return lambda: recording.replay(1)


def profiled(call: Callable[[], Any], device: torch.device, times: int = 3) -> dict[str, Any]:
    """Return the number and the milliseconds of the kernels of a call, or of a CPU's operations, and those that take most."""
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
        for _ in range(times):
            call()
        kinds.of(device).synchronise(device)
    own = [
        one for one in found.events() or [] if (one.device_type == DeviceType.CUDA if cuda else one.cpu_parent is None)
    ]
    return summary([(one.name, one.time_range.elapsed_us()) for one in own], times)


def summary(kernels: list[tuple[str, float]], times: int) -> dict[str, Any]:
    """Return the figures of one of several calls, given all their kernels' names and microseconds, or None if there are none."""
    spent = Counter[str]()
    for name, microseconds in kernels:
        spent[name[:80]] += microseconds / 1e3 / times  # type: ignore[assignment]
    return {
        "kernels": round(len(kernels) / times, 1) if kernels else None,
        "kernels_ms": spent.total() if kernels else None,
        "most": {name: round(one, 4) for name, one in spent.most_common(6)},
    }
