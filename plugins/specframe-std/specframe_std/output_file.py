"""Output files of commands: written completely or not at all, by one process at a time, never over a foreign file."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from specframe.errors import OptionError

if sys.platform != "win32":
    import fcntl

MARK = "made by specframe"
"""Mark in every page and figure that a command writes. A file without the mark is foreign and is not replaced."""
ENDS = 4096
"""Bytes searched for the mark at each end of a file: a page has the mark at its start, a PDF at its end."""


class Output:
    """A file that a command writes.

    Args:
        name: path as given by the user, used in messages.
        option: option that the path was given to.
    """

    def __init__(self, name: str | os.PathLike[str], option: str = "--output") -> None:
        self.name, self.option = os.fspath(name), option
        if not self.name or "\0" in self.name:
            raise OptionError(f"{option}: expected the name of a file, got {self.name!r}")
        with self.faults():  # the working directory may be gone
            self.path = Path(os.path.realpath(self.name))

    @contextlib.contextmanager
    def faults(self, more: str = "") -> Iterator[None]:
        """Turn an error of the operating system into an :class:`OptionError` of one sentence, which ends with ``more``."""
        try:
            yield
        except OSError as error:
            raise OptionError(
                f"{self.option}: {self.name} cannot be written: {error.strerror or error}{more}"
            ) from error

    def exists(self) -> bool:
        """Return whether the path exists; raise :class:`OptionError` for a path that cannot be looked up."""
        with self.faults():
            try:
                self.path.stat()
            except FileNotFoundError:
                return False
            return True

    def holds(self) -> bytes:
        """Return the first and last bytes of the file; nothing if the file does not exist.

        Raises:
            OptionError: the path is no file, its folder does not exist, or it may not be written.
        """
        exists = self.exists()
        if exists and not self.path.is_file():
            kind = "a folder" if self.path.is_dir() else "something else"
            raise OptionError(f"{self.option}: expected a file, got {self.name!r}, which is {kind}")
        if not exists and not self.path.parent.is_dir():
            raise OptionError(f"{self.option}: {self.name} cannot be written: expected a file in a folder that exists")
        if not os.access(self.path if exists else self.path.parent, os.W_OK):
            raise OptionError(f"{self.option}: {self.name} cannot be written: Permission denied")
        with self.faults():
            return ends(self.path) if exists else b""

    def refuse_foreign(self, mark: str = MARK) -> None:
        """Raise :class:`OptionError` unless the file can be written, and is empty, missing or has the mark."""
        held = self.holds()
        if held and mark.encode() not in held:
            raise OptionError(
                f"{self.option}: {self.name} was not made by specframe and is left as it is: name another, or delete it"
            )

    def replace(self, content: str | bytes | Iterable[bytes], more: str = "") -> None:
        """Replace the file's content: completely, or not at all if an error occurs. The error's sentence ends with ``more``."""
        with self.faults(more):
            replace(self.path, content)


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


def replace(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Replace a file's content completely, or raise :class:`OSError` and leave the file unchanged.

    Args:
        content: the new content, or its parts one after the other. They may be read from the old content.
    """
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")  # each thread has its own
    try:
        with draft.open("wb") as file:
            for part in (encode_text(content),) if isinstance(content, str | bytes) else content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            draft.chmod(path.stat().st_mode & 0o7777)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


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


def ends(path: Path) -> bytes:
    """Return the first and the last bytes of a file."""
    with path.open("rb") as file:
        first = file.read(ENDS)
        file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - ENDS))
        return first + file.read()


def encode_text(content: str | bytes) -> bytes:
    """Return text as UTF-8 bytes, with half surrogate pairs as escapes; return bytes unchanged."""
    return content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
