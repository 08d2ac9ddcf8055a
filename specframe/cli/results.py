"""The file of results: a line per finished sequence, written as it finishes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from specframe.errors import OptionError
from specframe.prompts import Prompt

if TYPE_CHECKING:
    from specframe.types import Result

Record = dict[str, Any]


def record(result: Result, index: int, prompt: Prompt) -> Record:
    """Return what is kept of one result; nothing in it depends on the clock."""
    metrics = attrs.asdict(result.metrics)
    metrics["acceptance_histogram"] = dict(sorted(result.metrics.acceptance_histogram.items()))
    metrics["mean_acceptance_length"] = result.metrics.mean_acceptance_length
    metrics["draft_acceptance_rate"] = result.metrics.draft_acceptance_rate
    kept = {
        "index": index,
        "prompt": prompt.text,
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "metrics": metrics,
    }
    return kept | ({"error": result.error} if result.error else {})


class ResultFile:
    """One JSON line per finished sequence, flushed at once; sorted by index when the run is complete.

    Every line carries the settings it was made with, so that a file is never continued with others.

    Args:
        path: where the lines go.
        prompts: what is decoded; a line's index counts these.
        settings: the options that decide what comes out.
    """

    def __init__(self, path: str, prompts: list[Prompt], settings: Record) -> None:
        self.path = Path(path).resolve()
        self._name, self._prompts, self._settings = path, prompts, settings
        self._lines: dict[int, str] = {}
        if self.path.exists() and not self.path.is_file():
            raise OptionError(f"--output: expected a file, got {path!r}, which is something else")
        if not os.access(self.path if self.path.exists() else self.path.parent, os.W_OK):
            raise OptionError(f"--output: {path} cannot be written: expected a folder that exists and may be written to")

    @property
    def done(self) -> set[int]:
        """The prompts that have a line; those that failed have none, they are tried again."""
        return set(self._lines)

    def refuse_existing(self) -> None:
        """Raise :class:`OptionError` when there are results already."""
        if self.path.exists() and self.path.stat().st_size:
            raise OptionError(
                f"--output: {self._name} holds results already: pass --resume to complete them, or name another file"
            )

    def resume(self) -> None:
        """Take over the lines that are there, a last one cut short left out.

        Raises:
            OptionError: they answer other prompts, or were made with other settings.
        """
        if not self.path.exists():
            return
        with self._faults():
            *lines, _ = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            kept = self._kept(line, f"{self._name} line {number}")
            if kept["finish_reason"] != "error":
                self._lines[kept["index"]] = line.decode()

    def _kept(self, line: bytes, place: str) -> Record:
        """Return the record in a line after checking that it belongs to this run."""
        try:
            kept = json.loads(line)
            index, prompt, settings, failed = (
                kept["index"], kept["prompt"], kept["settings"], kept["finish_reason"] == "error"
            )  # fmt: skip
            differing = {key: settings.get(key) for key, value in self._settings.items() if settings.get(key) != value}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OptionError(f"--resume: {place} is not a result of specframe run: expected a file it wrote") from error
        if differing:
            key, value = next(iter(differing.items()))
            raise OptionError(
                f"--resume: {place} was made with {key.replace('_', '-')} {value}: expected {self._settings[key]}, as now asked for"
            )
        if not failed and (index >= len(self._prompts) or self._prompts[index].text != prompt):
            raise OptionError(f"--resume: {place} answers another prompt: expected prompt {index} of those now asked for")
        return kept

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file for :meth:`write`, starting with the lines taken over; sort it when all went well."""
        with self._faults():
            self._replace(self._lines.values())
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as self._file:
                yield
            self._replace(line for _, line in sorted(self._lines.items()))

    def write(self, kept: Record) -> None:
        """Append one line."""
        line = json.dumps(kept | {"settings": self._settings}, ensure_ascii=False)
        self._lines[kept["index"]] = line
        with self._faults():
            self._file.write(line + "\n")
            self._file.flush()

    def _replace(self, lines: Any) -> None:
        """Put these lines in the file's place, all or nothing."""
        draft = self.path.with_name(self.path.name + ".part")
        with draft.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn what the operating system refuses into one sentence."""
        try:
            yield
        except OSError as error:
            raise OptionError(f"--output: {self._name} cannot be written: {error.strerror or error}") from error
