"""CUDA graphs share their memory, and one that cannot be recorded leaves the device as it was."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from specframe.devices.cuda import CudaGraph

pytestmark = pytest.mark.cuda


def doubled(values: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return a function to record."""
    return lambda: (2 * values,)


def waits(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Read a value, which cannot be recorded."""
    return (values * float(values[0]),)


@pytest.mark.wide
def test_a_graph_is_recorded_after_all_others_are_gone() -> None:
    """The memory of graphs goes with the last of them, and the next one gets other memory."""
    values = torch.arange(4.0, device="cuda")
    for factor in (1, 3):
        graphs = [CudaGraph(doubled(values)) for _ in range(2)]
        for recording in graphs:
            assert recording.replay(4)[0].tolist() == [0, 2, 4, 6]
        values.mul_(factor)
        for recording in graphs:
            assert recording.replay(3)[0].tolist() == [2 * factor * number for number in (0, 1, 2)]
        values.div_(factor)
        del recording, graphs
        gc.collect()


@pytest.mark.wide
def test_graphs_share_memory() -> None:
    """A second graph takes no further memory for what the first one has made and thrown away."""
    values = torch.zeros(2**22, device="cuda")  # 16 MiB

    def made() -> tuple[torch.Tensor, ...]:
        return ((values + 1).sum()[None],)

    first = CudaGraph(made)
    before = torch.cuda.memory_reserved()
    second = CudaGraph(made)
    assert torch.cuda.memory_reserved() - before < 2**24
    for _ in range(2):
        assert first.replay(1)[0].tolist() == second.replay(1)[0].tolist() == [2.0**22]


@pytest.mark.wide
def test_a_recording_that_fails_leaves_the_device_as_it_was() -> None:
    """Random numbers are drawn, work goes where it went, and other functions are recorded, afterwards as before."""
    values, queue = torch.ones(3, device="cuda"), torch.cuda.current_stream()
    kept = CudaGraph(doubled(values))
    kept.replay(3)
    torch.cuda.manual_seed(5)
    wanted = torch.rand(2, device="cuda").tolist()
    torch.cuda.manual_seed(5)
    with pytest.raises(RuntimeError):
        CudaGraph(lambda: waits(values))
    assert torch.cuda.current_stream() == queue
    assert torch.rand(2, device="cuda").tolist() == wanted
    made = CudaGraph(doubled(values))
    assert [one.replay(3)[0].tolist() for one in (made, made, kept)] == [[2.0] * 3] * 3
