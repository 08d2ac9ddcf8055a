"""The folder of a comparison: its settings, and one line per cell and repeat."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import attrs
from specframe_std.output_file import LockedFile, Output
from specframe_std.output_folders import make_folder

from specframe.errors import OptionError
from specframe_lab.comparison.schemes import Case

ABOUT, RESULTS = "comparison.json", "results.jsonl"
Line = dict[str, Any]
"""Figures of one run of one cell."""


@attrs.frozen
class Comparison:
    """A comparison's cases and the lines of each, by repeat."""

    about: dict[str, Any]
    cases: list[Case]
    lines: dict[str, dict[int, Line]]

    def runs(self, case: Case) -> dict[int, Line]:
        """Return the lines of a case that came to their end, by repeat."""
        return {repeat: line for repeat, line in sorted(self.lines.get(case.key, {}).items()) if not failure(line)}

    def fault(self, case: Case) -> str | None:
        """Return why a case could not be run, or None."""
        return next((fault for line in self.lines.get(case.key, {}).values() if (fault := failure(line))), None)

    def plain(self, case: Case, batch_size: int) -> Case | None:
        """Return plain decoding with a case's model at some batch size."""
        found = (c for c in self.cases if c.plain and c.setting == case.setting and c.batch_size == batch_size)
        return next(found, None)

    @property
    def timed(self) -> list[Case]:
        """The cases that were timed."""
        return [case for case in self.cases if case.timed]

    @property
    def schemes(self) -> list[str]:
        """The names of the schemes, plain decoding first."""
        return list(dict.fromkeys(case.scheme for case in self.timed))

    @property
    def batch_sizes(self) -> list[int]:
        """The batch sizes that were timed."""
        return sorted({case.batch_size for case in self.timed})


class Folder:
    """Folder of a comparison. Each line is flushed at once and never rewritten.

    Args:
        path: the folder, made when it is not there.
        about: what was asked for: ``settings``, ``environment`` and ``cells`` distinguish comparisons.
        begin: called before a comparison that is not there yet is begun; when it raises, nothing is written.
    """

    def __init__(
        self, path: str | os.PathLike[str], about: dict[str, Any], begin: Callable[[], None] = lambda: None
    ) -> None:
        self.path, self._name = make_folder(path), os.fspath(path)
        self._about, self._results = Output(self.path / ABOUT), LockedFile(self.path / RESULTS)
        self.about = json.loads(json.dumps(about))
        self.lines: dict[str, dict[int, Line]] = defaultdict(dict)
        self._open(begin)

    def _open(self, begin: Callable[[], None]) -> None:
        if self._about.exists():
            self.about |= self._same()
            self._take_over()
        elif self._results.exists():
            raise OptionError(f"--output: {self._name} holds a {RESULTS} of something else: name another folder")
        else:
            begin()
            self._about.replace(json.dumps(self.about, ensure_ascii=False, indent=1) + "\n")
            self._results.replace("")

    def _same(self) -> dict[str, Any]:
        """Return the command and date of the comparison in the folder; raise an error if it is another comparison."""
        try:
            with self._about.faults():
                there = json.loads(self._about.path.read_bytes())
            differing = difference(there, self.about)
        except (ValueError, TypeError, KeyError):
            raise OptionError(
                f"--output: {self._name}/{ABOUT} is not a comparison's: name another folder, or delete it"
            ) from None
        if differing:
            raise OptionError(
                f"--output: {self._name} holds another comparison, made with {differing}: name another folder, or "
                "delete it"
            )
        return {key: there[key] for key in ("command", "started") if key in there}

    def _take_over(self) -> None:
        """Keep the lines that came to their end; one cut short or with an error is left out and run again."""
        with self._results.faults():
            *complete, _ = self._results.path.read_bytes().split(b"\n")
        kept = []
        for number, text in enumerate(complete, start=1):
            try:
                line = json.loads(text)
                if failure(line):
                    continue
                self.lines[json.dumps(line["cell"], sort_keys=True)][line["repeat"]] = line
            except (ValueError, TypeError, KeyError):
                raise OptionError(
                    f"--output: {self._name}/{RESULTS} line {number} is no result: delete that line, or name another "
                    "folder"
                ) from None
            kept.append(text + b"\n")
        self._results.replace(b"".join(kept))

    def add(self, case: Case, repeat: int, line: Line) -> None:
        """Write the line of one run of a case."""
        line = {"scheme": case.scheme, "plain": case.plain, "cell": case.cell, "repeat": repeat, **line}
        text = json.dumps(line, ensure_ascii=False)
        self._results.append(text, more="; the same command goes on from there")
        self.lines[case.key][repeat] = json.loads(text)

    def comparison(self, cases: list[Case]) -> Comparison:
        """Return the lines written so far."""
        return Comparison(self.about, cases, dict(self.lines))


def failure(line: Line) -> str | None:
    """Return why a run is invalid, or None. A run is invalid if it failed or if prompts have no continuation."""
    if "error" in line:
        return str(line["error"])
    failed = line["figures"].get("errors", 0)
    return f"{failed} prompt{'s' * (failed != 1)} could not be decoded" if failed else None


def difference(there: dict[str, Any], now: dict[str, Any]) -> str:
    """Return the first thing that two comparisons do not share, as part of a sentence; "" when they share all."""
    for part in ("settings", "environment"):
        for key in {**now[part], **there[part]}:
            then, wanted = there[part].get(key), now[part].get(key)
            if then != wanted:
                return f"{key.replace('_', ' ')} {then} where {wanted} is now asked for"
    then, wanted = ({json.dumps(case["cell"], sort_keys=True) for case in about["cells"]} for about in (there, now))
    if then != wanted:
        return f"{len(then)} cells of which {len(then & wanted)} are among the {len(wanted)} now asked for"
    return ""
