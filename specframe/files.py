"""Output files of commands: written completely or not at all, never over a foreign file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from specframe.errors import OptionError

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


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file or a pipe; raise :class:`OSError` for a device, since devices such as /dev/zero have no end."""
    if stat.S_ISCHR(os.stat(path).st_mode) and not os.path.samefile(path, os.devnull):
        raise OSError(errno.EINVAL, "it is a device, not a file", os.fspath(path))
    return Path(path).open("rb")


def contents(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file or a pipe; raise :class:`OSError` for a device."""
    with open_file(path) as file:
        return file.read()


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


def ends(path: Path) -> bytes:
    """Return the first and the last bytes of a file."""
    with path.open("rb") as file:
        first = file.read(ENDS)
        file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - ENDS))
        return first + file.read()


def decode_text(data: bytes) -> str:
    """Return the text of UTF-8 bytes without a byte-order mark; raise :class:`ValueError` with what is no text, and where."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"expected UTF-8, got byte 0x{error.object[error.start]:02x} at place {error.start}"
        ) from error
    if (place := text.find("\0")) >= 0:
        raise ValueError(f"expected UTF-8, got a NUL character at place {place}, as UTF-16 has them")
    return text


def encode_text(content: str | bytes) -> bytes:
    """Return text as UTF-8 bytes, with half surrogate pairs as escapes; return bytes unchanged."""
    return content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
