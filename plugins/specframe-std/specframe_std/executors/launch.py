"""Where a rank is: its number, its device, and the processes that it was started with."""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist

from specframe.devices import kinds
from specframe.errors import OptionError, sentence
from specframe_std.executors.tp_ranks import Ranks

_joined: list[Ranks] = []
"""The ranks of this process: it joins them once."""


def device(name: str) -> torch.device:
    """Return the device of this rank: of the devices of its machine that with its number, or the CPU where there is none.

    Args:
        name: what was asked for: "auto", or the kind of device that there is.

    Raises:
        OptionError: another device is asked for, or the machine has fewer devices than ranks.
    """
    found = kinds.pick("auto")
    if name not in ("auto", found.type):
        raise OptionError(
            f"device {name!r}: expected auto or {found.type} with executor tp, which gives each rank a device of its own"
        )
    if kinds.of(found).event is None:  # the CPU: all ranks of a machine share it
        return found
    return kinds.pick(f"{found.type}:{os.environ.get('LOCAL_RANK', 0)}")


def joined(timeout: float) -> Ranks:
    """Return the ranks of this process, after waiting for all of them the first time.

    Args:
        timeout: seconds that a rank waits for the others, from now on.

    Raises:
        OptionError: they cannot be reached.
    """
    if not _joined:
        try:
            _join(timeout)
        except (RuntimeError, ValueError) as error:  # of torch's stores, sockets and groups
            raise OptionError(f"executor tp: the other ranks cannot be reached: {sentence(error)}") from error
        _joined.append(Ranks(timeout))
    return _joined[0]


def _join(timeout: float) -> None:
    """Have torch connect the ranks, unless that has been done."""
    if dist.is_initialized():
        return
    place, backend = device("auto"), "gloo"
    if place.index is not None:
        torch.accelerator.set_device_index(place.index)
        backend = dist.get_default_backend_for_device(place)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))


def leave() -> None:
    """Part from the other ranks: this process can join others afterwards."""
    for ranks in _joined:
        ranks.close()
    _joined.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
