"""What is known of results that a file holds, in a few bytes each: which there are, and where their lines begin."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

from specframe.text.prompts import Prompt

Key = tuple[int, int]
"""A prompt's index and the number of a sample."""


class Done:
    """A set of keys, a bit each."""

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = {}
        self._count = 0

    def add(self, key: Key) -> None:
        """Add a key."""
        index, sample = key
        bits = self._bits.setdefault(sample, bytearray())
        if (missing := index // 8 + 1 - len(bits)) > 0:
            bits.extend(bytes(missing))
        self._count += key not in self
        bits[index // 8] |= 1 << index % 8

    def __contains__(self, key: Key) -> bool:
        """Return whether a key was added."""
        index, sample = key
        bits = self._bits.get(sample, b"")
        return index // 8 < len(bits) and bool(bits[index // 8] >> index % 8 & 1)

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._count


class Lines:
    """Where the lines of results begin in a file, by their keys. Of two lines with one key the later one counts."""

    def __init__(self) -> None:
        self._indices, self._samples = array("q"), array("q")
        self._places, self._numbers, self._prompts = array("q"), array("q"), array("q")

    def add(self, key: Key, place: int, number: int = 0, prompt: str = "") -> None:
        """Note a line: where it begins, in bytes, its number and its prompt's text."""
        values = (*key, place, number, hash(prompt))
        for column, value in zip(
            (self._indices, self._samples, self._places, self._numbers, self._prompts), values, strict=True
        ):
            column.append(value)

    def _ordered(self) -> list[int]:
        """Return the notes by their keys, one for each."""
        import numpy as np

        if not self._indices:
            return []
        indices, samples = (np.frombuffer(column, dtype=np.int64) for column in (self._indices, self._samples))
        order = np.lexsort((samples, indices))  # a stable one: of equal keys the later line comes last
        last = np.ones(len(order), dtype=bool)
        last[:-1] = (np.diff(indices[order]) != 0) | (np.diff(samples[order]) != 0)
        return order[last].tolist()

    @property
    def last(self) -> Key | None:
        """The greatest key; None: there is none."""
        return max(zip(self._indices, self._samples, strict=True), default=None)

    def done(self) -> Done:
        """Return the keys."""
        made = Done()
        for key in zip(self._indices, self._samples, strict=True):
            made.add(key)
        return made

    def astray(self, prompts: Iterable[Prompt]) -> Key | None:
        """Return the number and the index of the first line that answers another prompt than that of its index; None: all answer.

        Args:
            prompts: in the order that indices count.
        """
        wrong: list[Key] = []
        asked, at, text = iter(prompts), -1, 0
        for one in self._ordered():
            index = self._indices[one]
            while at < index and (prompt := next(asked, None)) is not None:
                at, text = at + 1, hash(prompt.text)
            if at != index or text != self._prompts[one]:
                wrong.append((self._numbers[one], index))
        return min(wrong, default=None)

    def read(self, path: Path) -> Iterator[bytes]:
        """Yield the lines in the order of their keys, out of their file."""
        with path.open("rb") as file:
            for one in self._ordered():
                file.seek(self._places[one])
                yield file.readline()


def whole_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the lines of a file that have an end: the number of each, where it begins in bytes, and its content."""
    place = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            yield number, place, line[:-1]
            place += len(line)
