"""What a kind of device can do: the one place that is asked."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from specframe.devices.device_names import EXPECTED, entry_point, is_name
from specframe.errors import OptionError, sentence

NO_CONTEXT = contextlib.nullcontext()
"""A block around which nothing is done; it is made once, since every round asks for several."""


class CapturedGraph(Protocol):
    """A captured function without arguments that returns tensors; :meth:`replay` runs it on the present values of its buffers.

    When a captured graph is made, its buffers hold the values of its first replay: those results may be computed already then.
    """

    def replay(self, rows: int) -> tuple[torch.Tensor, ...]:
        """Execute the function and return the first rows of each tensor, in memory of their own."""


class Event(Protocol):
    """A mark in a device's queue, as ``torch.cuda.Event`` has it."""

    def record(self) -> None:
        """Set the mark after everything queued so far."""

    def query(self) -> bool:
        """Return whether the device has passed the mark."""

    def synchronize(self) -> None:
        """Wait for the mark."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from this mark to a later one."""


class DeviceTraffic(NamedTuple):
    """Counts since the program began."""

    waits: int
    """Number of device synchronisations."""
    copies: int
    """Copies from the host to the device."""


class DeviceKind:
    """A kind of device. The answers of this class are those of a CPU, which has computed everything when a call returns."""

    called = "CPU"
    """What messages call it."""
    kernels: frozenset[str] = frozenset()
    """Its kernels for attention without masks, of "packed" and "flex", and those that "triton" compiles."""
    dtype = torch.float32
    """The precision of models that are loaded in no particular one."""
    generators = False
    """Whether its devices have random generators of their own."""
    words = 1
    """Numbers that attention reads at once: a mask and each of its rows begin at multiples of this in memory."""
    vectors = True
    """Whether it computes the last numbers of a tensor by other instructions than the first, which fill its vectors."""
    queues = False
    """Whether a call returns before its result is there, so that the host synchronises where it reads a value."""
    values = True
    """Whether its tensors hold numbers. Where they do not, shapes alone are worked out: all that is read of them is 0."""
    recording: Callable[[Callable[[], tuple[torch.Tensor, ...]]], CapturedGraph] | None = None
    """Captures a function as a graph, or None if it has no graphs."""
    event: Callable[[torch.device], Event] | None = None
    """Makes a mark in a device's queue whose time can be read, or None if the host's clock serves."""

    def count(self) -> int:
        """Return the number of devices."""
        return 1

    def title(self, device: torch.device) -> str | None:
        """Return the device's name as its maker has it, or None if it has none."""
        return None

    def free(self) -> None:
        """Return memory that is reserved and unused."""

    def synchronise(self, device: torch.device) -> None:
        """Wait for everything queued."""

    def precise(self) -> AbstractContextManager[None]:
        """Keep sums of products in full precision, and in one order, inside the block."""
        return NO_CONTEXT

    def any_shape(self) -> AbstractContextManager[None]:
        """Keep attention, inside the block, to kernels that are as fast for a shape that comes up for the first time."""
        return NO_CONTEXT

    def pinned(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the host in memory that the device reads while the host goes on."""
        return values

    def host_buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Return memory of the host for the numbers of a tensor, to which the device copies while the host goes on."""
        return torch.empty(like.shape, dtype=like.dtype)

    def to_host(self, values: torch.Tensor) -> torch.Tensor:
        """Return a copy in the host's memory, which the device writes while the host goes on."""
        return self.host_buffer(values).copy_(values, non_blocking=True)

    def traffic(self) -> DeviceTraffic | None:
        """Return what has been counted, or None if nothing is."""
        return None

    def watch_memory(self, device: torch.device) -> None:
        """Begin to look for the most memory in use."""

    def most_memory(self, device: torch.device) -> int | None:
        """Return the most bytes that were in use since :meth:`watch_memory`, models included, or None if it is not known."""
        return None


class Cuda(DeviceKind):
    """CUDA."""

    called = "CUDA"
    kernels = frozenset({"packed", "flex", "triton"})
    dtype = torch.bfloat16
    generators = True
    words = 8
    """16 bytes of half precision. Of float32 it is half as many; torch aligns masks to 8 numbers of any precision."""
    vectors = False
    queues = True

    @staticmethod
    def recording(function: Callable[[], tuple[torch.Tensor, ...]]) -> CapturedGraph:
        """Record a CUDA graph."""
        from specframe.devices.cuda import CudaGraph

        return CudaGraph(function)

    @staticmethod
    def event(device: torch.device) -> Event:
        """Return a CUDA event in the queue of that device, whichever is the current one."""
        from specframe.devices.cuda import DeviceEvent

        return DeviceEvent(device)

    def count(self) -> int:
        """Return the number of CUDA devices."""
        return torch.cuda.device_count()

    def title(self, device: torch.device) -> str:
        """Return the name of the GPU."""
        return torch.cuda.get_device_name(device)

    def free(self) -> None:
        """Empty the allocator's cache."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def synchronise(self, device: torch.device) -> None:
        """Wait for everything queued."""
        torch.cuda.synchronize(device)

    def precise(self) -> AbstractContextManager[None]:
        """Switch off TF32, sums in half precision and split sums, for the process."""
        from specframe.devices.cuda import PRECISE

        return PRECISE

    def any_shape(self) -> AbstractContextManager[None]:
        """Keep attention away from cuDNN, for the process."""
        from specframe.devices.cuda import ANY_SHAPE

        return ANY_SHAPE

    def pinned(self, values: torch.Tensor) -> torch.Tensor:
        """Return a copy in page-locked memory."""
        return values.pin_memory()

    def host_buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Return page-locked memory."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def watch_memory(self, device: torch.device) -> None:
        """Begin to look for the most memory in use."""
        torch.cuda.reset_peak_memory_stats(device)

    def most_memory(self, device: torch.device) -> int:
        """Return the most bytes that torch's allocator had given out."""
        return torch.cuda.max_memory_allocated(device)


class Meta(DeviceKind):
    """Tensors without numbers: a run on it takes no memory, and reports how much one on a device would take."""

    called = "no device"
    queues = True
    values = False

    def to_host(self, values: torch.Tensor) -> torch.Tensor:
        """Return a tensor of this shape, of a single number: a copy on the host takes no memory of a device."""
        return values.new_empty(1).expand_as(values)


class Unknown(DeviceKind):
    """A kind without an entry point: an accelerator, and nothing else is known of it."""

    words, queues = Cuda.words, Cuda.queues


_KINDS: dict[str, DeviceKind] = {"cpu": DeviceKind(), "cuda": Cuda(), "meta": Meta()}
_UNKNOWN = Unknown()


@functools.cache
def of(device: torch.device) -> DeviceKind:
    """Return the kind of a device; one without an entry point is an accelerator without anything of its own."""
    return _KINDS.get(name := device.type) or _found(name) or _UNKNOWN


def kind(name: str) -> DeviceKind | None:
    """Return the kind of devices of a name, of an entry point, too, or None if there is none."""
    return _KINDS.get(name) or _found(name)


def pick(name: str) -> torch.device:
    """Return the device of a name; "auto" is CUDA where there is one.

    Raises:
        OptionError: the name is none of a device, or there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not is_name(name):
        raise OptionError(f"device {name!r}: expected {EXPECTED}")
    # before torch is asked, which knows further kinds from when they are imported
    of_kind = kind(name.partition(":")[0])
    device = torch.device(name)
    count = of_kind.count() if of_kind else 0
    if device.type != "cpu" and (device.index or 0) >= count:
        called = of_kind.called if of_kind else device.type
        there = (
            f"cpu or one of {count} {called} devices" if count else f"cpu, since this machine has no {called} device"
        )
        raise OptionError(f"device {name!r} is not there: expected {there}")
    return device


def free() -> None:
    """Return memory that is reserved and unused, of all kinds of devices."""
    for kind in _KINDS.values():
        kind.free()


def on_device(values: Any, device: torch.device) -> torch.Tensor:
    """Return whole numbers of the host as int64 on a device, without synchronisation.

    Args:
        values: an array, or lists.
        device: where they go.
    """
    made = torch.from_numpy(np.array(values, dtype=np.int64))  # a copy: the caller's array may change meanwhile
    return made if device.type == "cpu" else of(device).pinned(made).to(device, non_blocking=True)


def numbers(first: int, end: int, device: torch.device, rows: int = 1) -> torch.Tensor:
    """Return the whole numbers from ``first``, 0 or more, to before ``end``, the same in each row, (rows, N).

    Nobody writes to the tensor: it is a part of one that is made once, as every forward asks for such numbers.
    """
    return _numbers(1 << end.bit_length(), device, rows)[:, first:end]


@functools.cache
@torch.inference_mode(False)
def _numbers(count: int, device: torch.device, rows: int) -> torch.Tensor:
    return torch.arange(count, device=device)[None] if rows == 1 else _numbers(count, device, 1).expand(rows, -1)


def on_host(parts: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Return whole numbers and truth values of a device, (B,) or (B, N) each, as arrays of the host, brought in one copy."""
    return sent_to_host(parts)()


def sent_to_host(parts: Mapping[str, torch.Tensor]) -> Callable[[], dict[str, np.ndarray]]:
    """Send the same to the host in one copy, without a wait; the function that is returned waits for that copy alone."""
    return send(*joined_parts(parts))


Forms = Mapping[str, tuple[tuple[int, ...], bool]]
"""The shape of each part, (B,) or (B, N), in their order, and whether it has truth values."""


def joined_parts(parts: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Forms]:
    """Return the same side by side in one tensor of whole numbers, (B, X), and how it is taken apart."""
    columns_BN = [part.to(torch.long).reshape(len(part), -1) for part in parts.values()]
    forms = {name: (tuple(part.shape), part.dtype == torch.bool) for name, part in parts.items()}
    return torch.cat(columns_BN, dim=1), forms


def parted(joined: Any, forms: Forms) -> dict[str, Any]:
    """Return views of the parts of a tensor, or of an array, by name."""
    found, end = {}, 0
    for name, (shape, _) in forms.items():
        begin, end = end, end + math.prod(shape[1:])
        found[name] = joined[:, begin:end].reshape(shape)
    return found


def send(joined: torch.Tensor, forms: Forms) -> Callable[[], dict[str, np.ndarray]]:
    """Send joined parts to the host, without a wait; the function that is returned waits for them."""
    kind = of(device := joined.device)
    mark = kind.event(device) if kind.event else None
    sent = kind.to_host(joined) if mark else joined
    if mark:
        mark.record()

    def arrived() -> dict[str, np.ndarray]:
        if mark:
            mark.synchronize()
        copied = sent.cpu().numpy() if kind.values else np.zeros(sent.shape, dtype=np.int64)
        return {name: part.astype(bool) if forms[name][1] else part for name, part in parted(copied, forms).items()}

    return arrived


def constant(values: tuple[Any, ...], device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return numbers or truth values that come again and again, sent to a device once. Nobody writes to the tensor.

    Args:
        values: at least one.
        device: where they go.
        dtype: None: int64, or bool for truth values.
    """
    found = _constant(values, dtype or (torch.bool if isinstance(values[0], bool) else torch.int64), device)
    if _NOTES.constants is not None:
        _NOTES.constants.append(found)
    return found


class Notes(threading.local):
    """The constants that this thread was given since it began to note them."""

    constants: list[torch.Tensor] | None = None


_NOTES = Notes()


@contextlib.contextmanager
def constants_noted() -> Iterator[list[torch.Tensor]]:
    """Yield a list of the constants that this thread is given inside the block.

    Those used last are kept, and a graph that reads one does not report it: the graph's owner holds them.
    """
    before, _NOTES.constants = _NOTES.constants, []
    try:
        yield _NOTES.constants
    finally:
        _NOTES.constants = before


@functools.lru_cache(maxsize=1024)
@torch.inference_mode(False)
def _constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    made = torch.tensor(values, dtype=dtype)
    return made if device.type == "cpu" else of(device).pinned(made).to(device, non_blocking=True)


@functools.cache
def _found(name: str) -> DeviceKind | None:
    """Return the kind that an entry point describes, which is imported now, or None if there is none."""
    if (point := entry_point(name)) is None:
        return None
    try:
        _KINDS[name] = point.load()
    except Exception as error:  # a third party's module may raise anything
        raise OptionError(f"device {name!r} cannot be had: {point.value} raises {sentence(error)}") from error
    return _KINDS[name]
