"""Processor counters of this process, read from Linux: a measure of work that other programs on the machine do not disturb."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
"""The number of the system call ``perf_event_open`` by machine; the C library has no function for it."""
ATTRIBUTES = 128
"""Bytes of ``struct perf_event_attr``; its fields are at the offsets that its first version gave them."""
INHERIT, EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
EVENTS = {"cycles": 0, "instructions": 1}


class Counters:
    """Cycles and instructions of this process outside the kernel, threads started later included.

    Raises:
        OSError: the machine has no such counters, or the process may not read them.
    """

    def __init__(self) -> None:
        self._files = {name: _opened(event) for name, event in EVENTS.items()}

    def read(self) -> dict[str, int]:
        """Return the counts since the start."""
        return {name: struct.unpack("Q", os.read(file, 8))[0] for name, file in self._files.items()}


def _opened(event: int) -> int:
    attributes = ctypes.create_string_buffer(ATTRIBUTES)
    struct.pack_into("IIQ", attributes, 0, 0, ATTRIBUTES, event)
    struct.pack_into("Q", attributes, 40, INHERIT | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR)
    if platform.system() != "Linux" or platform.machine() not in PERF_EVENT_OPEN:
        raise OSError(f"processor counters: expected Linux on {' or '.join(PERF_EVENT_OPEN)}")
    libc = ctypes.CDLL(None, use_errno=True)
    file: int = libc.syscall(PERF_EVENT_OPEN[platform.machine()], attributes, 0, -1, -1, 0)
    if file < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return file
