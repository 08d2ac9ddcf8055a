"""What commands write in addition to results: pages with a mark, in folders that one process writes at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from specframe.errors import OptionError
from specframe_std.output_file import MARK, LockedFile, Output


def write_page(path: Path, content: str | bytes, mark: str = MARK) -> None:
    """Write a page or a figure with the mark; raise :class:`OptionError` if a foreign file would be replaced."""
    output = Output(path)
    output.refuse_foreign(mark)
    output.replace(content)


@contextlib.contextmanager
def claim_folder(folder: str, results: str, pages: Iterable[str]) -> Iterator[None]:
    """Create a folder if it is missing, and lock it for this process.

    Args:
        folder: path as given by the user.
        results: name of the results file, which the lock protects.
        pages: names of files written at the end. A foreign file of such a name is refused now.
    """
    there = make_folder(folder)
    for page in pages:
        Output(there / page).refuse_foreign()
    with LockedFile(there / results).locked():
        yield


def make_folder(folder: str | os.PathLike[str], option: str = "--output") -> Path:
    """Return a folder, which is created if it is missing."""
    if not os.fspath(folder) or "\0" in os.fspath(folder):
        raise OptionError(f"{option}: expected the name of a folder, got {os.fspath(folder)!r}")
    place = Output(folder, option)
    if os.path.isfile(place.path):
        raise OptionError(f"{option}: expected a folder, got {os.fspath(folder)!r}, which is a file")
    with place.faults():
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)
