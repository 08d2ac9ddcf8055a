"""Storage of results: one JSON line per sequence, written when the sequence finishes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Set
from typing import TYPE_CHECKING, Any, Self

import attrs
import click

from specframe.cli.resume_index import SAMPLES, ResumeIndex, key_of, whole_lines
from specframe.errors import OptionError, SpecframeError
from specframe.files import Output
from specframe.text.prompts import Prompt

if TYPE_CHECKING:
    from specframe.contracts.requests import Result

Record = dict[str, Any]
START = b'{"index": '
"""First bytes of a results file."""


def record(result: Result, prompt: Prompt, samples: int = 1) -> Record:
    """Return the record of one result, whose prompt has ``samples`` samples; no entry depends on time."""
    metrics = attrs.asdict(result.metrics)
    metrics["acceptance_histogram"] = dict(sorted(result.metrics.acceptance_histogram.items()))
    metrics["mean_acceptance_length"] = result.metrics.mean_acceptance_length
    metrics["draft_acceptance_rate"] = result.metrics.draft_acceptance_rate
    kept = {
        "index": result.index,
        **prompt_id(prompt),
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


def prompt_id(prompt: Prompt) -> Record:
    """Return the prompt's own ``id``, if its entry has one: a number or a text as it is, anything else as its text."""
    own = prompt.parameters.get("id")
    return {} if own is None else {"id": own if isinstance(own, str | int | float) else str(own)}


def parse_record(line: bytes, place: str) -> Record:
    """Return the record in a line; raise :class:`OptionError` if the line holds no record."""
    expected = {"index": int, "prompt": str, "finish_reason": str, "settings": dict}
    try:
        kept = json.loads(line)
    except ValueError:
        kept = None
    fits = isinstance(kept, dict) and all(isinstance(kept.get(name), kind) for name, kind in expected.items())
    if not fits or not all(isinstance(number, int) and 0 <= number < SAMPLES for number in place_of(kept)):
        raise OptionError(f"--resume: {place} is no result: expected a file that `specframe run --output` wrote")
    return kept


class Results:
    """Storage of results during decoding. This base class keeps nothing."""

    done: Set[int] = frozenset()
    """Keys of the results that exist already. Failed prompts are not among them: they are decoded again."""

    def __enter__(self) -> Self:
        """Make sure that results can be kept."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the storage."""

    def begin(self, total: int) -> None:
        """Called before decoding starts, with the total number of results."""

    def write(self, kept: Record) -> None:
        """Keep one result."""

    def finish(self) -> None:
        """Called when all results are written."""

    def held(self) -> str:
        """Return the state of the storage as part of a sentence; "" if there is nothing to resume."""
        return ""


class ResultStream(Results):
    """One JSON line per finished sequence on standard output, in the format of a results file.

    Args:
        settings: the options that determine the output.
    """

    def __init__(self, settings: Record) -> None:
        self._settings = dict(sorted(settings.items()))

    def write(self, kept: Record) -> None:
        """Print one line."""
        click.echo(json.dumps(kept | {"settings": self._settings}))


class ResultFile(Results):
    """A file with one JSON line per finished sequence, written at once; sorted by index when the run is complete.

    The lines are in the file alone: what is known of them here is which there were before, and how many there are.

    Every line has the settings of its run, so that a file is never resumed with other settings. The file is locked against
    other processes inside ``with``.

    Args:
        path: path of the file.
        prompts: the prompts; a line's index counts them. They are read where lines are taken over.
        settings: the options that determine the output.
        resume: take over the lines of an existing file, except for an incomplete last line; otherwise refuse the file.
    """

    def __init__(self, path: str, prompts: Iterable[Prompt], settings: Record, resume: bool = False) -> None:
        self.output, self._resume = Output(path), resume
        self._prompts, self._settings = prompts, dict(sorted(settings.items()))
        self._count = self._total = 0
        self._latest: int | None = None
        """The greatest key so far, as long as the lines are in order; None: they are not."""
        self._claim = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Lock the file and read its lines.

        Raises:
            OptionError: the file cannot be written, or its content cannot be resumed.
        """
        self._claim.enter_context(self.output.locked())
        self._lines = self._claim.enter_context(contextlib.closing(ResumeIndex()))
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
        with self.output.faults():
            for number, place, line in whole_lines(self.output.path):
                kept = self._kept(line, f"{self.output.name} line {number}")
                if kept["finish_reason"] != "error":
                    self._lines.add(key(kept), place, number, kept["prompt"])
        if wrong := self._lines.mismatch(self._prompts):
            number, index = wrong
            told = f"answers another prompt: expected prompt {index} of those now given"
            raise OptionError(f"--resume: {self.output.name} line {number} {told}")
        self.done = self._lines.keys()

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
        self.output.replace(self._lines.read(self.output.path) if self._count else b"")
        self._latest = -1 if self._lines.last is None else self._lines.last
        self._lines.close()

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
        with contextlib.closing(ResumeIndex()) as lines:
            with self.output.faults():
                for number, place, line in whole_lines(self.output.path):
                    lines.add(key(parse_record(line, f"{self.output.name} line {number}")), place)
            held = f"; {self.held()}, not in order: --resume sorts them"
            self.output.replace(lines.read(self.output.path), more=held)


def place_of(kept: Record) -> tuple[int, int]:
    """Return the index and the sample of a record."""
    return kept["index"], kept.get("sample", 0)


def key(kept: Record) -> int:
    """Return the key of a record."""
    return key_of(*place_of(kept))
