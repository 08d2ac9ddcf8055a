"""Tensors of the simulated device: wrappers around tensors of the CPU, to which every operation comes first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from specframe_testing.device.captured_graphs import tape, written
from specframe_testing.device.counters import ALLOCATION, COPY, COUNTERS, LAUNCH, WAIT
from specframe_testing.device.device_memory import MemoryBlock
from specframe_testing.device.device_operators import Rules, aten, rules

KERNELS: dict[Any, Callable[..., Any]] = {}
"""Kernels that the CPU does not have, or has in another way, by operator: called with tensors of the CPU."""

PARTS: dict[Any, Callable[..., Any]] = {}
"""Operators of Python functions: called with tensors of the device, so that their parts come here."""

TO = aten._to_copy.default
COPIES = (aten.copy_.default, TO)
LOCKED = WeakTensorKeyDictionary()
"""The tensors that are page-locked memory of the host."""


class SimTensor(torch.Tensor):
    """A tensor of the device ``sim``."""

    cell: torch.Tensor
    """The values, on the CPU."""
    block: MemoryBlock
    """The memory it looks at."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, index: int, block: MemoryBlock | None = None) -> SimTensor:
        """Wrap a tensor of the CPU, an allocation of its own if ``block`` is None."""
        with outside_inference():  # an inference tensor could have no views with a history of writes
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=torch.device("sim", index),
            )
        made.cell, made.block = inner, block or allocated(index, inner)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator under the device's rules."""
        return run(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.cell!r} on {self.device}"

    def tolist(self) -> Any:
        """Return the values as lists, after waiting for them."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse, as CUDA does, unless forced."""
        if force:
            return self.cpu().numpy()
        raise TypeError(f"can't convert {self.device} device type tensor to numpy: use Tensor.cpu() first")

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()


def outside_inference() -> contextlib.AbstractContextManager[Any]:
    """Return a block outside of inference mode; to enter one where it is so already takes longer than most operators."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()


def allocated(index: int, inner: torch.Tensor) -> MemoryBlock:
    """Return a new allocation for a tensor."""
    COUNTERS.note(ALLOCATION, "tensor")
    return MemoryBlock(index, inner.numel() * inner.itemsize)


class Operands:
    """The tensors among an operator's arguments: those of the device, and those of the host."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        self.sims: list[SimTensor] = []
        self.hosts: list[torch.Tensor] = []
        self.args = [self._inner(arg) for arg in args]
        self.kwargs = {name: self._inner(value) for name, value in kwargs.items()}

    @property
    def blocks(self) -> list[MemoryBlock]:
        """The memory of those of the device."""
        return [one.block for one in self.sims]

    def _inner(self, arg: Any) -> Any:
        if isinstance(arg, SimTensor):
            self.sims.append(arg)
            return arg.cell
        if isinstance(arg, torch.Tensor):
            self.hosts.append(arg)
        elif isinstance(arg, list | tuple):
            return [self._inner(one) for one in arg]
        return arg


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the CPU if a device may, and count what a device would have to wait for."""
    if func in PARTS:
        return PARTS[func](*args, **kwargs)
    own, kernel = rules(func), KERNELS.get(func) or func
    if own.composite and (parts := func.decompose(*args, **kwargs)) is not NotImplemented:
        return parts
    if (own.writes or own.fresh) and tape() is None:
        COUNTERS.note(LAUNCH, func.name())
    operands = Operands(args, kwargs)
    if func in COPIES:
        return copied(func, args, operands)
    check(func, own, args, operands)
    index = operands.sims[0].device.index
    with torch.inference_mode(False):  # it gives back how gradients were before as well
        torch.set_grad_enabled(False)
        keep_written(own, operands)
        found = kernel(*operands.args, **operands.kwargs)
        if (recorder := tape()) is not None:
            recorder.add(kernel, operands.args, operands.kwargs, found, own, operands.blocks)
        return wrapped(found, own, operands.sims, index)


def check(func: Any, own: Rules, args: Any, operands: Operands) -> None:
    """Refuse tensors of several devices, and count waits and copies.

    Raises:
        RuntimeError: the tensors are not on one device, or something is not permitted where it happens.
        NotImplementedError: the device does not have the operator.
    """
    if own.refused:
        raise NotImplementedError(f"{func}: {own.refused}")
    devices = {one.device for one in operands.sims}
    loose = [one for one in operands.hosts if one.dim() > 0 or not own.host_scalars]
    if own.indexed and loose:
        indices = [one for one in args[1] if one is not None and not isinstance(one, SimTensor)]
        loose = [one for one in loose if not any(one is index for index in indices)]
        for _ in indices:
            sent("an index of the host")
    if len(devices) > 1 or loose:
        names = ", ".join(sorted({str(one.device) for one in (*operands.sims, *loose)}))
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, got {names}")
    if own.wait:
        COUNTERS.note(WAIT, own.wait)
    if own.indexed and by_mask(args):
        COUNTERS.note(WAIT, "index by a mask")


def by_mask(args: Any) -> bool:
    """Return whether an indexing has a mask whose places have to be counted; one value for one mask fills it as it is."""
    masks = [one for one in args[1] if one is not None and one.dtype in (torch.bool, torch.uint8)]
    value = args[2] if len(args) > 2 else None
    fills = value is not None and value.numel() == 1 and value.device.type == "cpu" and len(args[1]) == 1
    return bool(masks) and not fills


def sent(what: str, waits: bool = True) -> None:
    """Count a copy from the host, which synchronises unless it is ``non_blocking``."""
    COUNTERS.note(COPY, what)
    if waits:
        COUNTERS.note(WAIT, f"{what}, without non_blocking")


def copied(func: Any, args: Any, operands: Operands) -> Any:
    """Copy from one place to another: on the device, to it or from it."""
    inner_args, inner_kwargs = operands.args, dict(operands.kwargs)
    source = args[1] if func is not TO else args[0]
    if func is TO:
        wanted = inner_kwargs.pop("device", None)
        inner_kwargs["pin_memory"] = None
        target = torch.device(wanted) if wanted is not None else source.device
    else:
        target = args[0].device
    non_blocking = inner_kwargs.get("non_blocking") or (func is not TO and len(args) > 2 and args[2])
    if source.device.type != "sim":
        sent("from the host", waits=not non_blocking)
    elif target.type != "sim" and not (non_blocking and func is not TO and args[0] in LOCKED):
        COUNTERS.note(WAIT, "copy to the host")
    with torch.inference_mode(False), torch.no_grad():
        keep_written(rules(func), operands)
        found = func(*inner_args, **inner_kwargs)
    if (recorder := tape()) is not None:
        recorder.add(func, inner_args, inner_kwargs, found, rules(func), operands.blocks)
    if func is not TO:
        return args[0]
    return found if target.type != "sim" else SimTensor(found, target.index or 0)


def keep_written(own: Rules, operands: Operands) -> None:
    """Note the values of an operator's tensors where it writes to one of them, and that is to be undone."""
    if own.writes and (notes := written()) is not None:
        for one in operands.sims:
            notes.keep(one.block, one.cell)


def page_locked(buffer: torch.Tensor) -> torch.Tensor:
    """Return memory of the host that the device may write to while the host goes on; whoever reads it has to wait first."""
    LOCKED[buffer] = True
    return buffer


def unresized(written: SimTensor) -> SimTensor:
    """Return a tensor that was written to; raise NotImplementedError if that gave it another shape."""
    if written.shape != written.cell.shape:
        raise NotImplementedError(f"the simulated device does not resize a result of shape {tuple(written.shape)}")
    return written


def wrapped(found: Any, own: Rules, sims: list[SimTensor], index: int) -> Any:
    """Return results as tensors of the device: the argument itself if it was written to, a view, or a new tensor."""
    if isinstance(found, torch.Tensor):
        if own.writes:
            for one in sims:
                if one.cell is found:
                    return unresized(one)
        return SimTensor(found, index, None if own.fresh else sims[0].block)
    if isinstance(found, list | tuple):
        return type(found)(wrapped(one, own, sims, index) for one in found)
    return found
