"""Reading a user's files: whole, as text in UTF-8, and no devices."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file or a pipe; raise :class:`OSError` for a device, since devices such as /dev/zero have no end."""
    if stat.S_ISCHR(os.stat(path).st_mode) and not os.path.samefile(path, os.devnull):
        raise OSError(errno.EINVAL, "it is a device, not a file", os.fspath(path))
    return Path(path).open("rb")


def contents(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file or a pipe; raise :class:`OSError` for a device."""
    with open_file(path) as file:
        return file.read()


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
