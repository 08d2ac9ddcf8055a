"""The file of results: one JSON line per sequence, written when the sequence finishes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from specframe.errors import OptionError, SpecframeError
from specframe.text.prompts.prompt import Prompt
from specframe_std.output_file import LockedFile, Output
from specframe_std.run_command.results import Key, Record, Results

START = b'{"index": '
"""First bytes of a results file."""


class ResultFile(Results):
    """A file with one JSON line per finished sequence, written at once; sorted by index when the run is complete.

    The lines are in the file alone: what is known of them here is which there were before and where they begin, and how many
    there are. A million results of 700 bytes take 200 MB here.

    Every line has the settings of its run, so that a file is never resumed with other settings. The file is locked against
    other processes inside ``with``.

    Args:
        path: path of the file.
        prompts: the prompts; a line's index counts them. They are read where lines are taken over.
        settings: the options that determine the output.
        resume: take over the lines of an existing file, except for an incomplete last line; otherwise refuse the file.
    """

    def __init__(self, path: str, prompts: Iterable[Prompt], settings: Record, resume: bool = False) -> None:
        self.output, self._resume = LockedFile(path), resume
        self._prompts, self._settings = prompts, dict(sorted(settings.items()))
        self._count = self._total = 0
        self._places: dict[Key, int] = {}
        """Where the lines taken over begin, in bytes. Of two lines with one key the later one counts."""
        self._latest: Key | None = None
        """The greatest key so far, as long as the lines are in order, or None if they are not."""
        self._claim = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Lock the file and read its lines.

        Raises:
            OptionError: the file cannot be written, or its content cannot be resumed.
        """
        self._claim.enter_context(self.output.locked())
        try:
            self._take_over() if self._resume else self._refuse(self.output.holds())
        except SpecframeError:
            self._claim.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Let other processes write the file."""
        self._claim.close()

    def held(self) -> str:
        """Return how many results the file holds, and how to decode the rest."""
        count, total = self._count, self._total
        if not count:
            return ""
        rest = f"all {total} results" if count == total else f"{count} of {total} results, --resume decodes the rest"
        return f"{self.output.path} holds {rest}"

    def _refuse(self, held: bytes) -> None:
        """Raise :class:`OptionError` if the file already has content."""
        if held.startswith(START):
            what = "results already: pass --resume to complete them, or name another file"
        else:
            what = "something other than results: name another file"
        if held:
            raise OptionError(f"--output: {self.output.name} holds {what}")

    def _take_over(self) -> None:
        """Take over the lines of an existing file.

        Raises:
            OptionError: a line belongs to another prompt, or was made with other settings.
        """
        if not self.output.exists():
            return
        asked = [hash(prompt.text) for prompt in self._prompts]
        with self.output.faults():
            for place, line, name in whole_lines(self.output):
                kept = self._kept(line, name)
                index = kept["index"]
                if kept["finish_reason"] == "error":
                    continue
                if index >= len(asked) or asked[index] != hash(kept["prompt"]):
                    told = f"answers another prompt: expected prompt {index} of those now given"
                    raise OptionError(f"--resume: {name} {told}")
                self._places[key(kept)] = place
        self.done = {*self._places}

    def _kept(self, line: bytes, place: str) -> Record:
        """Return the record in a line after checking that it was made as this run's are."""
        kept = parse_record(line, place)
        for key, value in self._settings.items():
            if kept["settings"].get(key) != value:
                then, now = ("the default" if v is None else v for v in (kept["settings"].get(key), value))
                option = key.replace("_", "-")
                raise OptionError(f"--resume: {place} was made with {option} {then}: expected {now}, as now asked for")
        return kept

    def begin(self, total: int) -> None:
        """Start the file with the lines taken over, in order."""
        self._total, self._count = total, len(self.done)
        self.output.replace(in_order(self.output.path, self._places) if self._count else b"")
        self._latest = max(self._places, default=(-1, 0))
        self._places.clear()

    def write(self, kept: Record) -> None:
        """Append one line."""
        line = json.dumps(kept | {"settings": self._settings}, ensure_ascii=False)
        self.output.append(line, more=f"; {held}" if (held := self.held()) else "")
        self._count += 1
        self._latest = key(kept) if self._latest is not None and self._latest < key(kept) else None

    def finish(self) -> None:
        """Sort the lines, unless they are."""
        if self._latest is not None:
            return
        with self.output.faults():
            places = {key(parse_record(line, name)): place for place, line, name in whole_lines(self.output)}
        held = f"; {self.held()}, not in order: --resume sorts them"
        self.output.replace(in_order(self.output.path, places), more=held)


def key(kept: Record) -> Key:
    """Return the key of a record: keys are in the order of prompts, and of a prompt's samples."""
    return kept["index"], kept.get("sample", 0)


def whole_lines(output: Output) -> Iterator[tuple[int, bytes, str]]:
    """Yield the lines of a file that have an end: where each begins in bytes, its content, and what messages call it."""
    place = 0
    with output.path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            yield place, line[:-1], f"{output.name} line {number}"
            place += len(line)


def in_order(path: Path, places: Mapping[Key, int]) -> Iterator[bytes]:
    """Yield the lines of a file that begin at these places, in the order of their keys."""
    with path.open("rb") as file:
        for _, place in sorted(places.items()):
            file.seek(place)
            yield file.readline()


def parse_record(line: bytes, place: str) -> Record:
    """Return the record in a line; raise :class:`OptionError` if the line holds no record."""
    expected = {"index": int, "prompt": str, "finish_reason": str, "settings": dict}
    try:
        kept = json.loads(line)
    except ValueError:
        kept = None
    fits = isinstance(kept, dict) and all(isinstance(kept.get(name), kind) for name, kind in expected.items())
    if not fits or not all(isinstance(number, int) and number >= 0 for number in key(kept)):
        raise OptionError(f"--resume: {place} is no result: expected a file that `specframe run --output` wrote")
    return kept
