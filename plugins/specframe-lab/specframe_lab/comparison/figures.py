"""The figures of a comparison, each as a table for drawing and for CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from specframe.files import write_page
from specframe_lab.comparison.results import Comparison, Line
from specframe_lab.comparison.schemes import Case
from specframe_lab.serving.metrics import PERCENTILES, metrics, rates, summary
from specframe_lab.serving.objectives import Objectives
from specframe_lab.verify import common_start

STAGES = ("draft", "verify", "accept", "align", "schedule", "prefill")
SPREAD = ("scheme", "batch_size", "median", "lowest", "highest", "repeats")
ENOUGH_FOR_P99 = 100
"""Fewest sequences for P99. Of fewer sequences, P99 lies between the two slowest."""
P99 = "p99"
"""The column with P99 in tables whose last column is the number of values that the percentiles are of."""


@attrs.frozen
class Table:
    """Numbers of one figure, and their meaning."""

    name: str
    title: str
    unit: str
    meaning: str
    columns: Sequence[str]
    rows: list[tuple[Any, ...]]

    @property
    def drawn(self) -> str:
        """Meaning of a point or bar, with the number of runs or sequences behind it; "" if ``meaning`` contains it."""
        if self.rows and P99 in self.columns:
            few = f"; P99 is told from {ENOUGH_FOR_P99} on" * (min(row[-1] for row in self.rows) < ENOUGH_FOR_P99)
            return f"Percentiles of {spelled(row[-1] for row in self.rows)} {self.columns[-1]} in each run{few}."
        if not self.rows or tuple(self.columns) != SPREAD:
            return ""
        runs = spelled(row[-1] for row in self.rows)
        if runs == "1":
            return "A point or a bar is one run."
        return (
            f"A point or a bar is the median of {runs} runs, the line through it goes from the lowest to the highest."
        )

    @property
    def told(self) -> list[tuple[Any, ...]]:
        """The rows for readers, in which P99 of too few values is not a number."""
        if P99 not in self.columns:
            return self.rows
        place = self.columns.index(P99)
        return [row if row[-1] >= ENOUGH_FOR_P99 else (*row[:place], math.nan, *row[place + 1 :]) for row in self.rows]

    def dicts(self) -> list[dict[str, Any]]:
        """Return the rows by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def write(self, folder: Path) -> None:
        """Write the rows as CSV; a file with other columns is foreign and is not replaced."""
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        write_page(folder / f"{self.name}.csv", text.getvalue(), mark=",".join(self.columns))


def spelled(counts: Iterable[int]) -> str:
    """Return a count, or the range of several."""
    counts = sorted(set(counts)) or [0]
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the median, the lowest and the highest of some values; not a number when there are none."""
    values = list(values)
    return (float(np.median(values)), min(values), max(values)) if values else (math.nan, math.nan, math.nan)


def by_cell(comparison: Comparison, value: Callable[[Line], float], speculating: bool = False) -> list[tuple[Any, ...]]:
    """Return the spread over repeats of a value of every timed case that has run."""
    rows = []
    for case in comparison.timed:
        runs = comparison.runs(case)
        if runs and not (speculating and case.cell["drafter"] == "none"):
            rows.append((case.scheme, case.batch_size, *spread(map(value, runs.values())), len(runs)))
    return rows


def figure(name: str) -> Callable[[Line], float]:
    """Return a function that reads a figure from a line; not a number where the version that wrote the line had no such figure."""
    return lambda line: line["figures"].get(name, math.nan)


MEMORY = ("scheme", "batch_size", "bytes", "median", "lowest", "highest", "repeats")
"""The columns of :func:`memory`: the most bytes, and tokens per second."""


def device_bytes(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return the spread of the most bytes of the device in use, where the device tells them."""
    rows = by_cell(
        comparison, lambda line: line.get("peak_device_bytes") or math.nan
    )  # none in results of older versions
    return [row for row in rows if not math.isnan(row[2])]


def state_bytes(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return the spread of the bytes of states, of cases whose models keep some."""
    return [row for row in by_cell(comparison, figure("state_bytes")) if row[2] > 0]


def memory(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return each case's median of the most bytes, those of the device or else of all caches, and its tokens per second."""
    measured = {row[:2]: row[2] for row in device_bytes(comparison)}
    caches = {row[:2]: row[2] for row in by_cell(comparison, figure("peak_kv_bytes"))}
    rates = by_cell(comparison, figure("tokens_per_second"))
    every = measured if len(measured) == len(rates) else caches  # bytes of one kind
    return [(*row[:2], every[row[:2]], *row[2:]) for row in rates if not math.isnan(every[row[:2]])]


def speed_ups(comparison: Comparison, case: Case) -> list[float]:
    """Return a case's tokens per second over plain decoding's at the same batch size in the same repeat."""
    plain = comparison.plain(case, case.batch_size)
    beside = comparison.runs(plain) if plain else {}
    rate = figure("tokens_per_second")
    runs = comparison.runs(case)
    return [rate(line) / rate(beside[r]) for r, line in runs.items() if r in beside and rate(beside[r])]


def speed_up(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return the spread of the speed-up of every scheme but plain decoding."""
    found = [(case, speed_ups(comparison, case)) for case in comparison.timed if not case.plain]
    return [(case.scheme, case.batch_size, *spread(values), len(values)) for case, values in found if values]


def bitwise_price(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return the spread of the time that bitwise equality takes, over that of the same cell without, in the same repeat."""
    rows, rate = [], figure("tokens_per_second")
    for case in comparison.timed:
        beside = next((comparison.runs(other) for other in comparison.timed if other.key == case.unlike), {})
        runs = comparison.runs(case)
        if prices := [rate(beside[r]) / rate(line) for r, line in runs.items() if r in beside and rate(line)]:
            rows.append((case.scheme, case.batch_size, *spread(prices), len(prices)))
    return rows


def break_even(rows: list[tuple[Any, ...]]) -> list[tuple[str, float | None, str]]:
    """Return the batch size from which on each scheme is slower than plain decoding, and what that is in words.

    Between two batch sizes that were measured, the median speed-up is taken to run straight over their logarithm.
    """
    found = []
    for scheme in dict.fromkeys(row[0] for row in rows):
        points = sorted((row[1], row[2]) for row in rows if row[0] == scheme)
        if len(points) < 2:
            continue
        size = crossing(points)
        if size is not None:
            words = f"{size:.1f}"
        elif points[-1][1] >= 1:
            words = f"above {points[-1][0]}, the largest measured"
        else:
            words = "none, slower at every batch size"
        found.append((scheme, size, words))
    return found


def crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the batch size where a line through (batch size, speed-up) last falls below 1, or None."""
    falls = [(a, b) for a, b in pairwise(points) if a[1] >= 1 > b[1]]
    if not falls or points[-1][1] >= 1:
        return None
    (low, before), (high, after) = falls[-1]
    return float(low * (high / low) ** ((before - 1) / (before - after)))


def stage_shares(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return, of the time of all repeats of a case, the share and the seconds of each stage."""
    rows = []
    for case in comparison.timed:
        runs = comparison.runs(case).values()
        seconds = {stage: sum(line["figures"]["stage_seconds"].get(stage, 0.0) for line in runs) for stage in STAGES}
        total = sum(seconds.values())
        if total:
            shares = ((stage, seconds[stage] / total, seconds[stage] / len(runs)) for stage in STAGES)
            rows += [(case.scheme, case.batch_size, *share) for share in shares]
    return rows


def by_position(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return how often the draft token in each place stood, counted over all repeats."""
    rows = []
    for case in comparison.timed:
        drafted, accepted = (total(comparison, case, f"{which}_by_position") for which in ("drafted", "accepted"))
        for place, (d, a) in enumerate(zip(drafted, accepted, strict=True), start=1):
            rows.append((case.scheme, case.batch_size, place, d, a, a / d if d else math.nan))
    return rows


def calibration(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return mean predicted probability, share that stood and count of draft tokens, by bins, of policies with a calibration."""
    rows = []
    for case in comparison.timed:
        bins = [np.array(line["calibration"]) for line in comparison.runs(case).values() if line.get("calibration")]
        for predicted, stood, count in np.sum(bins, axis=0) if bins else ():
            if count:
                rows.append((case.scheme, case.batch_size, predicted / count, stood / count, int(count)))
    return rows


def by_branch(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return how often each branch of trees was reached and stood, counted over all repeats; chains have none."""
    rows = []
    for case in comparison.timed:
        counts: dict[tuple[int, int], list[int]] = {}
        for line in comparison.runs(case).values():
            for depth, branch, reached, stood in line.get("by_branch", ()):  # none in results of older versions
                count = counts.setdefault((depth, branch), [0, 0])
                count[0], count[1] = count[0] + reached, count[1] + stood
        rows += [(case.scheme, case.batch_size, *place, r, s, s / r) for place, (r, s) in sorted(counts.items())]
    return rows


def total(comparison: Comparison, case: Case, name: str) -> list[int]:
    """Return the sums, place by place, of a list that every line of a case has."""
    lists = [line[name] for line in comparison.runs(case).values()]
    width = max(map(len, lists), default=0)
    return [sum(counts[place] for counts in lists if place < len(counts)) for place in range(width)]


def histogram(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return in how many rounds of a sequence each number of draft tokens stood, over all repeats."""
    rows = []
    for case in comparison.timed:
        counts: dict[int, int] = {}
        for line in comparison.runs(case).values():
            for accepted, rounds in line["figures"]["acceptance_histogram"].items():
                counts[int(accepted)] = counts.get(int(accepted), 0) + rounds
        rounds = sum(counts.values())
        rows += [(case.scheme, case.batch_size, a, counts[a], counts[a] / rounds) for a in sorted(counts)]
    return rows


def latency(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return the percentiles of the sequences' latencies, each the median over repeats, the longest wait, and how many
    sequences a run has.
    """
    rows = []
    for case in comparison.timed:
        lines = comparison.runs(case).values()
        found = [percentiles(line["latencies"]) for line in lines]
        if found:
            wait = max(line["longest_wait"] for line in lines)
            count = min(len(line["latencies"]) for line in lines)
            rows.append((case.scheme, case.batch_size, *np.median(found, axis=0).tolist(), wait, count))
    return rows


def percentiles(seconds: Iterable[float | None]) -> list[float]:
    """Return P50, P90 and P99 of what is there, between two values in proportion."""
    there = [value for value in seconds if value is not None]
    return np.percentile(there, PERCENTILES).tolist() if there else [math.nan] * len(PERCENTILES)


def serving(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return mean and percentiles of every figure of served requests, each the median over repeats, and of how many values."""
    rows = []
    for case in comparison.timed:
        runs = [metrics(line["requests"]) for line in comparison.runs(case).values() if "requests" in line]
        for name in runs[0] if runs else ():
            found = [summary(run[name]) for run in runs]
            rows.append(
                (
                    case.scheme,
                    case.batch_size,
                    name,
                    *np.median(found, axis=0).tolist(),
                    min(len(run[name]) for run in runs),
                )
            )
    return rows


def request_rates(comparison: Comparison, wanted: Objectives | None = None) -> list[tuple[Any, ...]]:
    """Return the figures of all requests of a run together, each the median over repeats."""
    rows = []
    for case in comparison.timed:
        runs = [rates(line["requests"], wanted) for line in comparison.runs(case).values() if "requests" in line]
        if runs:
            rows.append((case.scheme, case.batch_size, *np.median([[*run.values()] for run in runs], axis=0).tolist()))
    return rows


def equality(comparison: Comparison) -> list[tuple[Any, ...]]:
    """Return how many sequences are, token for token, those of plain decoding at batch size 1, and at the same one.

    What a rule draws that depends on the draft is not compared.
    """
    rows = []
    for case in comparison.timed:
        if not all(line.get("comparable", True) for line in comparison.runs(case).values()):
            continue
        ids = tokens(comparison, case)
        references = [tokens(comparison, comparison.plain(case, size)) for size in (1, case.batch_size)]
        if ids and all(references):
            counts = [matches(ids, reference) for reference in references]
            repeated = len({line["tokens_digest"] for line in comparison.runs(case).values()}) == 1
            (exact, partial), (beside, _) = counts
            rows.append(
                (case.scheme, case.batch_size, len(ids), exact, partial, beside, lossless(comparison, case), repeated)
            )
    return rows


def lossless(comparison: Comparison, case: Case) -> bool:
    """Return whether a case's strategies promise the target's own output."""
    return all(line["lossless"] for line in comparison.runs(case).values())


def tokens(comparison: Comparison, case: Case | None) -> list[list[int]]:
    """Return the token ids of a case's first run."""
    return comparison.runs(case).get(0, {}).get("token_ids", []) if case else []


def matches(ids: list[list[int]], reference: list[list[int]]) -> tuple[int, float]:
    """Return how many sequences are equal, and the mean share of a sequence that is a common start."""
    pairs = list(zip(ids, reference, strict=True))
    return sum(a == b for a, b in pairs), float(np.mean([shared(a, b) for a, b in pairs]))


def shared(ids: list[int], reference: list[int]) -> float:
    """Return the length of two sequences' common start over the longer one's length."""
    length = max(len(ids), len(reference))
    return common_start(ids, reference) / length if length else 1.0
