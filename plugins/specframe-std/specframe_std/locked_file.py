"""Files that grow line by line, written by one process at a time."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from specframe.errors import OptionError
from specframe.files import Output, encode_text

if sys.platform != "win32":
    import fcntl


class LockedFile(Output):
    """A file that a command writes line by line, and locks against other processes."""

    def append(self, line: str, more: str = "") -> None:
        """Append one line: completely, or not at all if an error occurs.

        The file is opened by name for every line, so that a file moved away meanwhile is not written to.
        """
        left = encode_text(line + "\n")
        with self.faults(more), self.path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(before)
                raise

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file against other processes. The lock ends with the process, also after a crash.

        A file system without locks is written without a lock.

        Raises:
            OptionError: another process has the lock, or the file cannot be written.
        """
        self.holds()
        beside = Output(self.path.with_name(f".{self.path.name}.lock"), self.option)
        with self.faults():
            lock = acquire_lock(beside.path)
        if isinstance(lock, str):
            raise OptionError(
                f"{self.option}: {self.name} is being written by another run{lock}: wait for its end, or name another"
            )
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                beside.path.unlink()  # before the release: a process that has opened the lock file sees that it was deleted
            os.close(lock)


def acquire_lock(path: Path) -> int | str:
    """Lock a file and return its descriptor, which holds the lock until it is closed.

    If another process has the lock, return a text that names the process, empty if its number is unknown.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if sys.platform != "win32":
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace").strip()
            os.close(descriptor)
            return f" (process {holder})" if holder.isdigit() else ""
        except OSError:  # the file system has no locks
            return descriptor
        if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
            break
        os.close(descriptor)  # another process released and deleted the file after it was opened here
    os.truncate(descriptor, 0)
    with contextlib.suppress(OSError):  # the number is only for messages, which work without it
        os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor
