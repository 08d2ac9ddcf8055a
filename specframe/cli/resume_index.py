"""The resume index of a file of results: which results it holds, and where their lines begin."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from specframe.text.prompts import Prompt

SAMPLES = 2**31
"""More samples than a prompt can have, so that a prompt's index and the number of a sample make one integer of SQLite's 64 bits."""


def key_of(index: int, sample: int) -> int:
    """Return the key of a result; keys are in the order of prompts, and of a prompt's samples."""
    return index * SAMPLES + sample


class ResumeIndex:
    """Where the lines of results begin in a file, by key. Of two lines with one key the later one counts.

    It is a table in memory. A million results of 700 bytes take 35 MB here, and 66 MB as a set of keys. To note and to read them in
    order takes as long as to parse them.
    """

    def __init__(self) -> None:
        self._table = sqlite3.connect(":memory:")
        self._table.execute(
            "CREATE TABLE lines (key INTEGER PRIMARY KEY, place INTEGER, number INTEGER, prompt INTEGER)"
        )

    def add(self, key: int, place: int, number: int = 0, prompt: str = "") -> None:
        """Note a line: where it begins, in bytes, its number and its prompt's text."""
        self._table.execute("INSERT OR REPLACE INTO lines VALUES (?, ?, ?, ?)", (key, place, number, hash(prompt)))

    @property
    def last(self) -> int | None:
        """The greatest key; None: there is none."""
        ((key,),) = self._table.execute("SELECT max(key) FROM lines")
        return key

    def keys(self) -> set[int]:
        """Return the keys."""
        return {key for (key,) in self._table.execute("SELECT key FROM lines")}

    def mismatch(self, prompts: Iterable[Prompt]) -> tuple[int, int] | None:
        """Return the number and the index of the first line that answers another prompt than that of its index; None: all answer.

        Args:
            prompts: in the order that indices count.
        """
        wrong: list[tuple[int, int]] = []
        asked, at, text = iter(prompts), -1, 0
        for key, number, answered in self._table.execute("SELECT key, number, prompt FROM lines ORDER BY key"):
            index = key // SAMPLES
            while at < index and (prompt := next(asked, None)) is not None:
                at, text = at + 1, hash(prompt.text)
            if at != index or text != answered:
                wrong.append((number, index))
        return min(wrong, default=None)

    def read(self, path: Path) -> Iterator[bytes]:
        """Yield the lines in the order of their keys, out of their file."""
        with path.open("rb") as file:
            for (place,) in self._table.execute("SELECT place FROM lines ORDER BY key"):
                file.seek(place)
                yield file.readline()

    def close(self) -> None:
        """Forget the lines."""
        self._table.close()


def whole_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the lines of a file that have an end: the number of each, where it begins in bytes, and its content."""
    place = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            yield number, place, line[:-1]
            place += len(line)
