"""The file of results: a line per finished sequence, written as it finishes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from specframe.errors import OptionError
from specframe.prompts import Prompt

if TYPE_CHECKING:
    from specframe.types import Result

Record = dict[str, Any]


def record(result: Result, prompt: Prompt, samples: int = 1) -> Record:
    """Return what is kept of one result, one of ``samples`` of its prompt; nothing in it depends on the clock."""
    metrics = attrs.asdict(result.metrics)
    metrics["acceptance_histogram"] = dict(sorted(result.metrics.acceptance_histogram.items()))
    metrics["mean_acceptance_length"] = result.metrics.mean_acceptance_length
    metrics["draft_acceptance_rate"] = result.metrics.draft_acceptance_rate
    kept = {
        "index": result.index,
        "prompt": prompt.text,
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "metrics": metrics,
    }
    if result.sample or samples > 1:
        kept["sample"] = result.sample
    if result.logprobs is not None:
        kept["logprobs"] = result.logprobs
    if result.top_logprobs is not None:
        kept["top_logprobs"] = result.top_logprobs
    error = prompt.fault or result.error
    return kept | {"error": error} if error else kept


def parsed(line: bytes, place: str) -> Record:
    """Return the record in a line; raise :class:`OptionError` when it holds none."""
    expected = {"index": int, "prompt": str, "finish_reason": str, "settings": dict}
    try:
        kept = json.loads(line)
    except ValueError:
        kept = None
    if not isinstance(kept, dict) or not all(isinstance(kept.get(key), kind) for key, kind in expected.items()):
        raise OptionError(f"--resume: {place} is no result: expected a file that `specframe run --output` wrote")
    return kept


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
        self._name, self._prompts, self._settings = path, prompts, dict(sorted(settings.items()))
        self._lines: dict[tuple[int, int], str] = {}
        if self.path.exists() and not self.path.is_file():
            raise OptionError(f"--output: expected a file, got {path!r}, which is something else")
        if not os.access(self.path if self.path.exists() else self.path.parent, os.W_OK):
            raise OptionError(
                f"--output: {path} cannot be written: expected a folder that exists and may be written to"
            )

    @property
    def done(self) -> set[tuple[int, int]]:
        """The prompts (index) and samples that have a line; those that failed have none, they are tried again."""
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
                self._lines[kept["index"], kept.get("sample", 0)] = line.decode()

    def _kept(self, line: bytes, place: str) -> Record:
        """Return the record in a line after checking that it belongs to this run."""
        kept = parsed(line, place)
        for key, value in self._settings.items():
            if kept["settings"].get(key) != value:
                then, now = ("the default" if v is None else v for v in (kept["settings"].get(key), value))
                option = key.replace("_", "-")
                raise OptionError(f"--resume: {place} was made with {option} {then}: expected {now}, as now asked for")
        index, failed = kept["index"], kept["finish_reason"] == "error"
        if not failed and (index >= len(self._prompts) or self._prompts[index].text != kept["prompt"]):
            raise OptionError(f"--resume: {place} answers another prompt: expected prompt {index} of those now given")
        return kept

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file for :meth:`write`, starting with the lines taken over; sort it when all went well."""
        with self._faults():
            self._replace(self._lines.values())
            self._file = self.path.open("a", encoding="utf-8", errors="backslashreplace")
        with self._file:
            yield
        with self._faults():
            self._replace(line for _, line in sorted(self._lines.items()))

    def write(self, kept: Record) -> None:
        """Append one line."""
        line = json.dumps(kept | {"settings": self._settings}, ensure_ascii=False)
        self._lines[kept["index"], kept.get("sample", 0)] = line
        with self._faults():
            self._file.write(line + "\n")
            self._file.flush()

    def _replace(self, lines: Iterable[str]) -> None:
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
