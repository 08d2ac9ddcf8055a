"""Text that is read when it is needed, and as often as it is: nothing here holds more than a line of it."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import stat
import sys
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from typing import BinaryIO, TextIO, cast

from specframe.errors import OptionError, sentence
from specframe.files import decode_text, open_file

GZIP = ".gz"
"""The ending of files that gzip has compressed. What they hold is copied to a temporary file, as that of a pipe."""


class LazyText:
    """A file of text, or standard input. What can be read only once, such as a pipe, is copied to a temporary file first.

    Args:
        path: the file; ``-``: standard input.
        name: what messages call it.

    Raises:
        OptionError: it cannot be read, or is not UTF-8.
    """

    def __init__(self, path: str, name: str) -> None:
        if path == "-" and sys.stdin is None:
            raise OptionError("--prompts: standard input is closed: expected prompts, one per line")
        try:
            given = sys.stdin.buffer if path == "-" else open_file(path)
        except (OSError, ValueError) as error:  # of a name with a NUL byte
            raise OptionError(f"--prompts: {name} cannot be read: {getattr(error, 'strerror', error)}") from error
        try:
            packed = path.lower().endswith(GZIP)
            self._file = rereadable(cast(BinaryIO, gzip.GzipFile(fileobj=given)) if packed else given)
            if self._file is not given or path != "-":
                weakref.finalize(self, self._file.close)
            fault = self._fault()
        except (OSError, EOFError, zlib.error) as error:
            why = getattr(error, "strerror", None) or sentence(error)
            raise OptionError(f"--prompts: {name} cannot be read: {why}") from error
        if fault:
            raise OptionError(f"--prompts: {name} is not text: {fault}")

    def _fault(self) -> str:
        """Return why the file is not text; "" if all of it is."""
        for number, line in enumerate(self._file, start=1):
            try:
                decode_text(line)
            except ValueError as error:
                return f"line {number}: {error}"
        return ""

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines that are not blank with their numbers, which count from 1."""
        with self.characters(newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.removesuffix("\n").removesuffix("\r")

    def whole(self) -> str:
        """Return all of the text."""
        with self.characters(newline="") as file:
            return file.read()

    @contextlib.contextmanager
    def characters(self, newline: str) -> Iterator[TextIO]:
        """Open the text from its first character on, without a byte-order mark; ``newline``: as that of ``open``."""
        self._file.seek(0)
        file = io.TextIOWrapper(self._file, encoding="utf-8-sig", newline=newline)
        try:
            yield file
        finally:
            file.detach()


def rereadable(file: BinaryIO) -> BinaryIO:
    """Return a file that can be read several times: itself, or a copy where it cannot be."""
    try:
        plain = not isinstance(file, gzip.GzipFile)  # its own descriptor is that of the compressed bytes
        if plain and stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.tell() == 0:
            return file
    except (OSError, ValueError):  # no descriptor of its own
        pass
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - it is read for as long as the prompts are
    shutil.copyfileobj(file, copy)
    if file is not getattr(sys.stdin, "buffer", None):
        file.close()
    copy.seek(0)
    return copy
