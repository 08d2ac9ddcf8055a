"""Files that commands write: whole or not at all, by one process at a time, and never over what is somebody else's."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from specframe.errors import OptionError

if sys.platform != "win32":
    import fcntl

MARK = "made by specframe"
"""Stands in every page and figure that a command writes: a file without it is somebody else's."""
ENDS = 4096
"""Bytes at each end of a file in which the mark is looked for: a page has it at its start, a PDF at its end."""


class Output:
    """A file that a command writes.

    Args:
        name: its path as the user gave it, which messages call it by.
        option: what it was given to.
    """

    def __init__(self, name: str | os.PathLike[str], option: str = "--output") -> None:
        self.name, self.option = os.fspath(name), option
        if not self.name or "\0" in self.name:
            raise OptionError(f"{option}: expected the name of a file, got {self.name!r}")
        with self.faults():  # the working directory may be gone
            self.path = Path(os.path.realpath(self.name))

    @contextlib.contextmanager
    def faults(self, more: str = "") -> Iterator[None]:
        """Turn what the operating system refuses into one sentence; ``more`` is its end."""
        try:
            yield
        except OSError as error:
            raise OptionError(
                f"{self.option}: {self.name} cannot be written: {error.strerror or error}{more}"
            ) from error

    def exists(self) -> bool:
        """Return whether there is something at the path; a fault of the path itself is one of the file's."""
        with self.faults():
            try:
                self.path.stat()
            except FileNotFoundError:
                return False
            return True

    def holds(self) -> bytes:
        """Return both ends of what is there, nothing where there is nothing.

        Raises:
            OptionError: it is no file, there is no folder for it, or it may not be written to.
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
        """Raise :class:`OptionError` unless the file can be written, and what it holds has the mark of such a file."""
        held = self.holds()
        if held and mark.encode() not in held:
            raise OptionError(
                f"{self.option}: {self.name} was not made by specframe and is left as it is: name another, or delete it"
            )

    def replace(self, content: str | bytes) -> None:
        """Put this content in the file's place: all of it, or none where there is no room for it."""
        with self.faults():
            replace(self.path, content)

    def append(self, line: str, more: str = "") -> None:
        """Add one line: all of it, or none where there is no room for it.

        The file is opened for every line, by its name: a file that was moved away meanwhile is not written to.
        """
        left = encoded(line + "\n")
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
        """Keep other processes from writing the file; a process that ends, however it does, keeps nobody.

        Where the file system knows no locks nothing is kept.

        Raises:
            OptionError: another process keeps it, or it cannot be written.
        """
        self.holds()
        beside = Output(self.path.with_name(f".{self.path.name}.lock"), self.option)
        with self.faults():
            lock = acquired(beside.path)
        if isinstance(lock, str):
            raise OptionError(
                f"{self.option}: {self.name} is being written by another run{lock}: wait for its end, or name another"
            )
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                beside.path.unlink()  # before it is let go of: whoever opened it meanwhile sees that it is gone
            os.close(lock)


def contents(path: str | os.PathLike[str]) -> bytes:
    """Return what a file or a pipe holds; raise :class:`OSError` for a device, which may have no end, as /dev/zero has none."""
    if stat.S_ISCHR(os.stat(path).st_mode) and not os.path.samefile(path, os.devnull):
        raise OSError(errno.EINVAL, "it is a device, not a file", os.fspath(path))
    return Path(path).read_bytes()


def replace(path: Path, content: str | bytes) -> None:
    """Put content in a file's place, all of it or none; raise :class:`OSError` where that cannot be."""
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            file.write(encoded(content))
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            draft.chmod(path.stat().st_mode & 0o7777)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def acquired(path: Path) -> int | str:
    """Return the descriptor of a file that is locked until it is closed; what is known of the process that has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if sys.platform != "win32":
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace").strip()
            os.close(descriptor)
            return f" (process {holder})" if holder.isdigit() else ""
        except OSError:  # no locks here
            return descriptor
        if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
            break
        os.close(descriptor)  # another process let go of it, and deleted it, after it was opened
    os.truncate(descriptor, 0)
    with contextlib.suppress(OSError):  # a message without a number is one all the same
        os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def put(path: Path, content: str | bytes, mark: str = MARK) -> None:
    """Write a page or a figure, which has the mark, unless that would replace somebody else's."""
    output = Output(path)
    output.refuse_foreign(mark)
    output.replace(content)


@contextlib.contextmanager
def claimed(folder: str, results: str, pages: Iterable[str]) -> Iterator[None]:
    """Keep a folder, made where it is not there, to this process.

    Args:
        folder: its path as the user gave it.
        results: the file in it that one process may write at a time.
        pages: what is written in the end, which is refused now where it is somebody else's.
    """
    there = made(folder)
    for page in pages:
        Output(there / page).refuse_foreign()
    with Output(there / results).locked():
        yield


def made(folder: str | os.PathLike[str], option: str = "--output") -> Path:
    """Return a folder, made where it is not there."""
    if not os.fspath(folder) or "\0" in os.fspath(folder):
        raise OptionError(f"{option}: expected the name of a folder, got {os.fspath(folder)!r}")
    place = Output(folder, option)
    if os.path.isfile(place.path):
        raise OptionError(f"{option}: expected a folder, got {os.fspath(folder)!r}, which is a file")
    with place.faults():
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


def ends(path: Path) -> bytes:
    """Return the first and the last bytes of a file."""
    with path.open("rb") as file:
        first = file.read(ENDS)
        file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - ENDS))
        return first + file.read()


def decoded(data: bytes) -> str:
    """Return the text of UTF-8 bytes, a byte-order mark left out; raise :class:`ValueError` with what is no text in them."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte, place = error.object[error.start], error.start
        raise ValueError(f"expected UTF-8, got byte 0x{byte:02x} at place {place}") from error
    if (place := text.find("\0")) >= 0:
        raise ValueError(f"expected UTF-8, got a NUL character at place {place}, as UTF-16 has them")
    return text


def encoded(content: str | bytes) -> bytes:
    """Return text as UTF-8, halves of surrogate pairs as escapes."""
    return content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
