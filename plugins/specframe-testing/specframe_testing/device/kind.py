"""The simulated device as torch and specframe know it."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.attention import varlen
from torch.utils import backend_registration

from specframe.devices.kinds import Cuda, DeviceKind, DeviceTraffic
from specframe_testing.device import kernels, varlen_kernels
from specframe_testing.device.captured_graphs import SimRecording
from specframe_testing.device.counters import COPY, COUNTERS, LAUNCH, WAIT
from specframe_testing.device.device_memory import MEMORY
from specframe_testing.device.tensor import KERNELS, PARTS, SimTensor, aten, page_locked

FACTORIES = (
    "empty.memory_format",
    "empty_strided",
    "arange",
    "arange.start",
    "arange.start_step",
    "eye",
    "eye.m",
    "linspace",
    "randperm",
)
"""Operators that make tensors; all others depend on the first two. The rest would make an empty tensor and then resize it."""

COUNT = 2
"""Devices: ``sim:0`` and ``sim:1``."""


class Module(backend_registration._DummyBackendModule):
    """What ``torch.sim`` is."""

    def is_available(self) -> bool:
        """Return no: torch would make tensors of Python lists on the device, not send them there."""
        return False

    def device_count(self) -> int:
        """Return the number of devices."""
        return COUNT

    def synchronize(self, device: Any = None) -> None:
        """Wait for the device."""
        COUNTERS.note(WAIT, "synchronize")


class SimEvent:
    """A mark in the queue of a device that has always done everything."""

    def __init__(self, device: torch.device) -> None:
        self._seconds, self._launches = 0.0, 0

    def record(self) -> None:
        """Set the mark."""
        self._seconds, self._launches = time.perf_counter(), COUNTERS.totals[LAUNCH]

    def query(self) -> bool:
        """Return whether the device has passed the mark."""
        return True

    def synchronize(self) -> None:
        """Wait for the mark."""
        idle = COUNTERS.totals[LAUNCH] == self._launches
        COUNTERS.note(WAIT, "event, with nothing queued after it" if idle else "event")

    def elapsed_time(self, end_event: SimEvent) -> float:
        """Return the milliseconds from this mark to a later one."""
        return (end_event._seconds - self._seconds) * 1000


class Simulated(DeviceKind):
    """The simulated device: everything that CUDA has but a compiler."""

    called = "sim"
    kernels = frozenset({"packed"})
    recording = SimRecording
    event = SimEvent
    words, queues = Cuda.words, Cuda.queues

    def count(self) -> int:
        """Return the number of devices."""
        return COUNT

    def title(self, device: torch.device) -> str:
        """Return the name of the device."""
        return "simulated accelerator"

    def synchronise(self, device: torch.device) -> None:
        """Wait for the device."""
        COUNTERS.note(WAIT, "synchronize")

    def host_buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Return memory to which the device copies asynchronously."""
        return page_locked(super().host_buffer(like))

    def any_shape(self) -> AbstractContextManager[None]:
        """Change torch's settings as on CUDA."""
        return Cuda().any_shape()

    def traffic(self) -> DeviceTraffic:
        """Return what has been counted."""
        return DeviceTraffic(COUNTERS.totals[WAIT], COUNTERS.totals[COPY])

    def watch_memory(self, device: torch.device) -> None:
        """Begin to look for the most memory in use."""
        MEMORY.peak[device.index or 0] = MEMORY.used[device.index or 0]

    def most_memory(self, device: torch.device) -> int:
        """Return the most bytes that were in use."""
        return MEMORY.peak[device.index or 0]


def on_sim(operator: Any) -> Any:
    """Return a factory of tensors on the device."""

    def make(*args: Any, device: Any = None, pin_memory: Any = None, **options: Any) -> SimTensor:
        with torch.inference_mode(False):
            inner = operator(*args, device="cpu", **options)
        return SimTensor(inner, device.index or 0)

    return make


def register() -> Simulated:
    """Have torch know the device."""
    backend_registration._setup_privateuseone_for_python_backend("sim", backend_module=Module())
    torch._C._set_only_lift_cpu_tensors(True)  # a tensor of a Python list is made on the host and sent
    for name in FACTORIES:
        operator = getattr(getattr(aten, name.partition(".")[0]), name.partition(".")[2] or "default")
        LIBRARY.impl(name, on_sim(operator), "PrivateUse1")
    KERNELS[aten.histc.default] = lambda counted, *bounds: aten.histc(counted.float(), *bounds).to(counted.dtype)
    KERNELS[aten._flash_attention_forward.default] = varlen_kernels.flash
    KERNELS[aten.scaled_dot_product_attention.default] = kernels.attention
    KERNELS[aten.index_copy_.default] = kernels.index_copy
    KERNELS[aten.index_put_.default] = kernels.index_put
    KERNELS[aten.scatter_.src] = kernels.scatter
    PARTS[torch.ops.torch_attn._varlen_attn.default] = varlen._varlen_attn._init_fn
    if hasattr(varlen, "varlen_attn_out"):  # since torch 2.12
        KERNELS[aten._flash_attention_forward_no_dropout_inplace.default] = varlen_kernels.flash_out
        PARTS[torch.ops.torch_attn._varlen_attn_out.default] = varlen._varlen_attn_out._init_fn
    return Simulated()


LIBRARY = torch.library.Library("aten", "IMPL")
SIMULATED = register()
