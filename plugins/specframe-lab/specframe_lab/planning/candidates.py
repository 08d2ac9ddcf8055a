"""The ways in which a pair can be decoded: their bytes, by memory profiling, and tokens per second, modelled or measured."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from specframe_memory.footprint import Workload
from specframe_memory.memory_plan import Ladder, bytes_told
from specframe_std.run_command.run_report import counted

from specframe.errors import ModelError, OptionError, sentence

KNEE = 0.96
"""The share of the greatest speed that the knee keeps: that of SpecMemo (arXiv 2506.01986)."""

Speed = Callable[[int, int], float | None]
"""Returns the tokens per second of a number of rows that draft a number of tokens each round, or None if it is not known."""


@attrs.frozen
class Candidate:
    """A number of rows and a draft length."""

    batch_size: int
    draft_length: int
    """The draft length that is asked for, or 0 without a drafter."""
    bytes: int
    """That a run takes at most."""
    kv_bytes: int
    parts: Mapping[str, int]
    tokens_per_second: float


@attrs.frozen
class CandidatePlan:
    """Candidates, and which of them are worth choosing."""

    candidates: list[Candidate]
    budget: int | None
    """Bytes that there are, or None for as many as are wanted."""

    @property
    def fitting(self) -> list[Candidate]:
        """Those that fit into the budget."""
        return [one for one in self.candidates if self.budget is None or one.bytes <= self.budget]

    @property
    def best(self) -> Candidate:
        """The fastest of all, whatever it takes."""
        return fastest(self.candidates)

    @property
    def chosen(self) -> Candidate | None:
        """The fastest that fits, or None if none does."""
        return fastest(self.fitting) if self.fitting else None

    def require_fitting(self) -> None:
        """Raise :class:`ModelError` with the least memory that runs unless a candidate fits."""
        if self.budget is None or self.fitting:
            return
        least = self.least
        drafts = counted(least.draft_length, "drafted token") if least.draft_length else "no drafter"
        raise ModelError(
            f"--memory: expected at least {bytes_told(least.bytes)}, needed by {counted(least.batch_size, 'row')} with {drafts}, "
            f"got {bytes_told(self.budget)}"
        )

    @property
    def least(self) -> Candidate:
        """The one that takes the fewest bytes."""
        return min(self.candidates, key=lambda one: (one.bytes, -one.tokens_per_second))

    @property
    def least_drafting(self) -> Candidate | None:
        """The one with a drafter that takes the fewest bytes, or None for nothing drafts."""
        drafting = [one for one in self.candidates if one.draft_length]
        return min(drafting, key=lambda one: (one.bytes, -one.tokens_per_second), default=None)

    @property
    def knee(self) -> Candidate:
        """The one with the fewest bytes among those that keep :data:`KNEE` of the greatest speed of all."""
        enough = KNEE * self.best.tokens_per_second
        return min((one for one in self.candidates if one.tokens_per_second >= enough), key=lambda one: one.bytes)


def fastest(candidates: Iterable[Candidate]) -> Candidate:
    """Return the fastest candidate; of equally fast ones, that with the fewest bytes."""
    return max(candidates, key=lambda one: (one.tokens_per_second, -one.bytes))


def candidates(
    ladder: Ladder,
    load: Workload,
    batch_sizes: Iterable[int],
    draft_lengths: Iterable[int],
    speed: Speed,
    nodes: Callable[[int], int] = lambda length: length,
) -> Iterator[Candidate]:
    """Yield a candidate for each batch size and draft length whose speed is known, and for plain decoding at each batch size.

    ``load`` has the sequences, whatever their rows; ``nodes`` returns the nodes of a draft of a length: of a tree they are more.
    """
    lengths = [0, *draft_lengths] if ladder.drafts else [0]
    for rows in batch_sizes:
        for length in lengths:
            if (found := speed(rows, length)) is not None:
                step = ladder.step(attrs.evolve(load, rows=rows), nodes(length))
                took = step.footprint
                yield Candidate(step.rows, length, took.total, took.kv_bytes, took.parts, found)


def measured_speeds(file: str) -> dict[tuple[int, int], float]:
    """Return the median tokens per second of the runs of a comparison, by batch size and draft length, 0: plain decoding.

    Raises:
        OptionError: the file cannot be read, or holds no run of a fixed draft length.
    """
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    try:
        runs = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise OptionError(f"--measured: {file} cannot be read: {sentence(error)}") from error
    for run in runs:
        if (key := key_of(run)) is not None:
            found[key].append(float(run["figures"]["tokens_per_second"]))
    if not found:
        raise OptionError(
            f"--measured: {file} has no run with a batch size, a draft length and tokens_per_second: expected a results.jsonl of "
            "`specframe compare`"
        )
    return {key: statistics.median(speeds) for key, speeds in found.items()}


def key_of(run: Any) -> tuple[int, int] | None:
    """Return a run's batch size and draft length, or None if it is no run of a fixed draft length."""
    cell = run.get("cell") if isinstance(run, Mapping) else None
    figures = run.get("figures") if isinstance(run, Mapping) else None
    if not isinstance(cell, Mapping) or not isinstance(figures, Mapping):
        return None
    rows, length, speed = cell.get("batch_size"), str(cell.get("draft_length")), figures.get("tokens_per_second")
    if not isinstance(rows, int) or not isinstance(speed, int | float):
        return None
    if run.get("plain"):
        return rows, 0
    return (rows, int(length)) if length.isdecimal() else None
