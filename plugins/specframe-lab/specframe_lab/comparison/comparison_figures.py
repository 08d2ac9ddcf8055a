"""The figures of a comparison, each as a table for drawing and for CSV."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from specframe_std.output_folders import write_page

from specframe_lab.comparison.comparison_results import Comparison, Line
from specframe_lab.comparison.schemes import Case
from specframe_lab.comparison.transformers_generate import of_transformers
from specframe_lab.serving.objectives import Objectives
from specframe_lab.serving.serving_figures import metrics, rates, summary
from specframe_lab.verify import common_start

STAGES = ("draft", "verify", "accept", "align", "schedule", "prefill")
SPREAD = ("scheme", "batch_size", "median", "low", "high", "repeats")
"""The columns of a figure over repeats: the median, and the ends of its interval."""
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t of two-sided 95% for 2, 3, ... repeats; for more than 11 the last, which is a little too wide."""
ENOUGH_FOR_P99 = 100
"""Fewest sequences for P99. Of fewer sequences, P99 lies between the two slowest."""
CONFIDENCE = "95%"
P99 = "p99"
"""The column with P99 in tables whose last column is the number of values that the percentiles are of."""


Rows = list[tuple[Any, ...]]


@attrs.frozen
class Table:
    """Numbers of one figure, and their meaning."""

    name: str
    title: str
    unit: str
    meaning: str
    rows: Rows
    columns: Sequence[str] = SPREAD
    nothing: str = ""
    """Sentence in place of a figure whose values are all 0."""

    @property
    def empty(self) -> bool:
        """Whether the figure would show nothing but zeros, and has a sentence for that."""
        return bool(self.nothing and self.rows) and not any(row[4] for row in self.rows)

    @property
    def drawn(self) -> str:
        """Meaning of a point or bar, with the number of runs or sequences behind it; "" if ``meaning`` contains it."""
        if self.rows and P99 in self.columns:
            few = f"; P99 needs {ENOUGH_FOR_P99}" * (min(row[-1] for row in self.rows) < ENOUGH_FOR_P99)
            return f"Percentiles of {spelled(row[-1] for row in self.rows)} {self.columns[-1]} in each run{few}."
        if not self.rows or tuple(self.columns) != SPREAD:
            return ""
        runs = spelled(row[-1] for row in self.rows)
        if runs == "1":
            return "A point or a bar is one run."
        return f"A point or a bar is the median of {runs} runs, the line through it their {CONFIDENCE} confidence interval."

    @property
    def told(self) -> Rows:
        """The rows for readers, in which P99 of too few values is not a number."""
        if P99 not in self.columns:
            return self.rows
        place = self.columns.index(P99)
        return [row if row[-1] >= ENOUGH_FOR_P99 else (*row[:place], math.nan, *row[place + 1 :]) for row in self.rows]

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


Bounds = Callable[[Iterable[float]], tuple[float, float, float]]


def interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the median of some values, and the ends of the confidence interval of their mean; of one value that value alone.

    The interval is Student's, of logarithms where all values are above 0, since what a machine does meanwhile makes runs longer by
    a factor. A bootstrap of three repeats could not leave the range between the least and the greatest, which holds the true
    median in three comparisons of four.
    """
    values = list(values)
    return student(values, np.log, np.exp) if values and min(values) > 0 else share_interval(values)


def share_interval(values: Iterable[float]) -> tuple[float, float, float]:
    """Return what :func:`interval` does for shares, whose interval is that of the values themselves."""
    return student(list(values), np.asarray, np.asarray)


Scale = Callable[[Any], Any]


def student(values: list[float], to: Scale, back: Scale) -> tuple[float, float, float]:
    """Return the median of some values, and Student's interval of their mean on a scale, which holds the median."""
    middle, low, high = spread(values)
    if len(values) < 2 or low == high:
        return middle, low, high
    scaled = to(np.array(values))
    error = STUDENT[min(len(values), len(STUDENT) + 1) - 2] * scaled.std(ddof=1) / math.sqrt(len(values))
    low, high = (max(0.0, float(back(scaled.mean() + sign * error))) for sign in (-1, 1))
    return middle, min(low, middle), max(high, middle)


def told_apart(low: float, high: float, repeats: int, value: float = 1.0) -> bool:
    """Whether an interval over several repeats is on one side of a value."""
    return repeats > 1 and not low <= value <= high


def each(
    comparison: Comparison, values: Callable[[list[Line]], Iterable[tuple[Any, ...]]], speculating: bool = False
) -> Rows:
    """Return the rows of every timed case that has run: scheme, batch size, and each that a function makes of the case's lines.

    With ``speculating`` plain decoding has none.
    """
    return [
        (case.scheme, case.batch_size, *row)
        for case in comparison.timed
        if (lines := [*comparison.runs(case).values()]) and not (speculating and case.cell["drafter"] == "none")
        for row in values(lines)
    ]


def by_cell(
    comparison: Comparison, value: Callable[[Line], float], speculating: bool = False, bounds: Bounds = interval
) -> Rows:
    """Return a value of every timed case that has run: the median over repeats, and its bounds."""
    return each(comparison, lambda lines: [(*bounds(map(value, lines)), len(lines))], speculating)


def shares(comparison: Comparison, name: str, speculating: bool = False) -> Rows:
    """Return a figure that is a share, see :func:`by_cell`."""
    return by_cell(comparison, figure(name), speculating, share_interval)


def figure(name: str) -> Callable[[Line], float]:
    """Return a function that reads a figure from a line; not a number where the version that wrote the line had no such figure."""
    return lambda line: line["figures"].get(name, math.nan)


MEMORY = ("scheme", "batch_size", "bytes", "median", "low", "high", "repeats")
"""The columns of :func:`memory`: the most bytes, and tokens per second."""


def device_bytes(comparison: Comparison) -> Rows:
    """Return the spread of the most bytes of the device in use, where the device reports them."""
    rows = by_cell(comparison, lambda line: line.get("peak_device_bytes") or math.nan)  # old results have none
    return [row for row in rows if not math.isnan(row[2])]


def state_bytes(comparison: Comparison) -> Rows:
    """Return the spread of the bytes of states, of cases whose models keep some."""
    return [row for row in by_cell(comparison, figure("state_bytes")) if row[2] > 0]


def memory(comparison: Comparison) -> Rows:
    """Return each case's median of the most bytes, those of the device or else of all caches, and its tokens per second."""
    measured = {row[:2]: row[2] for row in device_bytes(comparison)}
    caches = {row[:2]: row[2] for row in by_cell(comparison, figure("peak_kv_bytes"))}
    rates = by_cell(comparison, figure("tokens_per_second"))
    every = measured if len(measured) == len(rates) else caches  # bytes of one kind
    return [(*row[:2], every[row[:2]], *row[2:]) for row in rates if not math.isnan(every[row[:2]])]


def ratios(comparison: Comparison, case: Case, beside: Case, value: Callable[[Line], float]) -> list[float]:
    """Return a case's values over another's in the same repeat, so that what slows a whole repeat down has no part in them."""
    runs, others = comparison.runs(case), comparison.runs(beside)
    return [value(line) / value(others[r]) for r, line in runs.items() if r in others and value(others[r])]


def over(comparison: Comparison, beside: Callable[[Case], Case | None], inverse: bool = False) -> Rows:
    """Return tokens per second of every timed case over those of another in the same repeat, or ``inverse``, with the interval."""
    rows = []
    for case in comparison.timed:
        if other := beside(case):
            pair = (other, case) if inverse else (case, other)
            if values := ratios(comparison, *pair, figure("tokens_per_second")):
                rows.append((case.scheme, case.batch_size, *interval(values), len(values)))
    return rows


def speed_up(comparison: Comparison) -> Rows:
    """Return the speed-up of every scheme but plain decoding, with its interval."""
    return over(comparison, lambda case: None if case.plain else comparison.plain(case, case.batch_size))


def over_transformers(comparison: Comparison) -> Rows:
    """Return the speed-up of every other scheme over transformers at the same batch size, with its interval."""

    def beside(case: Case) -> Case | None:
        same = (one for one in comparison.timed if one.setting == case.setting and one.batch_size == case.batch_size)
        return None if of_transformers(case) else next((one for one in same if of_transformers(one)), None)

    return over(comparison, beside)


def bitwise_price(comparison: Comparison) -> Rows:
    """Return the time that bitwise equality takes, over that of the same cell without, in the same repeat."""
    cases = {case.key: case for case in comparison.timed}
    return over(comparison, lambda case: cases.get(case.unlike or ""), inverse=True)


def break_even(rows: list[tuple[Any, ...]]) -> list[tuple[str, int | None, int | None, str]]:
    """Return between which batch sizes that were measured each scheme becomes slower than plain decoding, as far as intervals say.

    Nothing is drawn between batch sizes: a scheme is surely faster at one and surely slower at another, or that is not known.
    """
    found = []
    for scheme in dict.fromkeys(row[0] for row in rows):
        points = sorted((row[1:] for row in rows if row[0] == scheme), key=lambda row: row[0])
        if len(points) < 2:
            continue
        faster = [size for size, _, low, _, repeats in points if repeats > 1 and low > 1]
        slower = [size for size, _, _, high, repeats in points if repeats > 1 and high < 1]
        slower = [size for size in slower if size > max(faster, default=0)]
        ends = max(faster, default=None), min(slower, default=None)
        found.append((scheme, *ends, in_words([size for size, *_ in points], faster, slower)))
    return found


def in_words(sizes: list[int], faster: list[int], slower: list[int]) -> str:
    """Return where a scheme becomes slower than plain decoding, by the batch sizes at which it surely is faster or slower."""
    unsure = [size for size in sizes if size not in (*faster, *slower) and size > max(faster, default=0)]
    aside = f" (not told apart at {', '.join(map(str, unsure))})" if unsure else ""
    if faster and slower:
        return f"between {max(faster)} and {min(slower)}{aside}"
    if faster:
        return f"above {max(faster)}{aside or ', the largest measured'}"
    if slower:
        return f"none, slower at {', '.join(map(str, slower))}{aside}" if aside else "none, slower at every batch size"
    return "not known, at no batch size told apart from plain decoding"


SIDE_BY_SIDE = ("batch_size", "faster", "slower", "times", "low", "high", "repeats", "why")


def side_by_side(comparison: Comparison) -> Rows:
    """Return, for each batch size, how many times as fast as each other scheme the fastest lossless one is, and why."""
    rows, rate = [], figure("tokens_per_second")
    groups: dict[tuple[Any, ...], list[Case]] = {}
    for case in comparison.timed:
        if not case.plain and comparison.runs(case):
            groups.setdefault((*case.setting, case.batch_size), []).append(case)
    for cases in groups.values():
        best = max(
            [case for case in cases if lossless(comparison, case)] or cases,
            key=lambda case: float(np.median([rate(line) for line in comparison.runs(case).values()])),
        )
        for case in cases:
            if case is not best and (times := ratios(comparison, best, case, rate)):
                bounds = *interval(times), len(times)
                rows.append((best.batch_size, best.scheme, case.scheme, *bounds, why(comparison, best, case)))
    return rows


SPENT = {
    "draft": "drafting",
    "verify": "the target's passes",
    "accept": "accepting",
    "align": "moving rows",
    "schedule": "choosing rows",
    "prefill": "reading prompts",
}
"""What each stage does, in words."""
APART = 1.03
"""Factor from which the tokens, or the seconds, of two schemes count as a reason for their speeds."""


def why(comparison: Comparison, one: Case, other: Case) -> str:
    """Return why a scheme is faster than another, by the tokens and the seconds of a pass of the target, whose ratio is its speed.

    "" where neither differs, or the lines are of a version that did not count passes.
    """
    (gained, took, stages), (less, longer, spent) = (per_pass(comparison, case) for case in (one, other))
    if not (gained and less and took and longer):
        return ""
    words = []
    if gained / less >= APART:
        words.append(
            f"a pass of the target gives {less:.1f} tokens with {other.scheme}, {gained:.1f} with {one.scheme}"
        )
    if longer / took >= APART:
        stage = max(STAGES, key=lambda stage: spent[stage] - stages[stage])
        shares = spent[stage] / longer, stages[stage] / took
        where = f"{shares[0]:.0%} of it {SPENT[stage]}, {shares[1]:.0%} with {one.scheme}"
        words.append(
            f"a pass and what goes with it takes {longer / took:.2f} times as long with {other.scheme}: {where}"
        )
    return "; ".join(words)


def per_pass(comparison: Comparison, case: Case) -> tuple[float, float, dict[str, float]]:
    """Return the tokens and the seconds for each pass of the target, over all repeats, and the seconds of each stage."""
    lines = [line["figures"] for line in comparison.runs(case).values()]
    passes = sum(line.get("target_forwards", 0) for line in lines)
    if not passes:
        return 0.0, 0.0, {}
    seconds = {stage: sum(line["stage_seconds"].get(stage, 0.0) for line in lines) / passes for stage in STAGES}
    return sum(line["tokens"] for line in lines) / passes, sum(seconds.values()), seconds


def stage_shares(lines: list[Line]) -> Rows:
    """Return, of the time of all repeats of a case, the share and the seconds of each stage."""
    seconds = {stage: sum(line["figures"]["stage_seconds"].get(stage, 0.0) for line in lines) for stage in STAGES}
    total = sum(seconds.values())
    return [(stage, seconds[stage] / total, seconds[stage] / len(lines)) for stage in STAGES] if total else []


def by_position(lines: list[Line], of: str = "drafted") -> Rows:
    """Return how often the draft token in each place was accepted, counted over all repeats: of all drafts that were as long or,
    of those "reached", of the ones whose tokens before it were all accepted.
    """
    drafted, accepted = (total(lines, f"{which}_by_position") for which in (of, "accepted"))
    counts = enumerate(zip(drafted, accepted, strict=False), start=1)  # results of older versions have none reached
    return [(place, d, a, a / d if d else math.nan) for place, (d, a) in counts]


def calibration(lines: list[Line]) -> Rows:
    """Return mean predicted probability, accepted share and count of draft tokens, by bins, of policies with a calibration."""
    bins = [np.array(line["calibration"]) for line in lines if line.get("calibration")]
    counts = np.sum(bins, axis=0) if bins else ()
    return [(predicted / count, stood / count, int(count)) for predicted, stood, count in counts if count]


def by_branch(lines: list[Line]) -> Rows:
    """Return how often each branch of trees was reached and accepted, counted over all repeats; chains have none."""
    counts: dict[tuple[int, int], list[int]] = {}
    for line in lines:
        for depth, branch, reached, stood in line.get("by_branch", ()):  # none in results of older versions
            count = counts.setdefault((depth, branch), [0, 0])
            count[0], count[1] = count[0] + reached, count[1] + stood
    return [(*place, r, s, s / r) for place, (r, s) in sorted(counts.items())]


def total(lines: list[Line], name: str) -> list[int]:
    """Return the sums, place by place, of a list that every line has."""
    return [sum(counts) for counts in zip_longest(*(line.get(name, []) for line in lines), fillvalue=0)]


def histogram(lines: list[Line]) -> Rows:
    """Return in how many rounds of a sequence each number of draft tokens was accepted, over all repeats."""
    counts: Counter[int] = Counter()
    for line in lines:
        counts.update({int(accepted): rounds for accepted, rounds in line["figures"]["acceptance_histogram"].items()})
    return [(accepted, count, count / counts.total()) for accepted, count in sorted(counts.items())]


BY_TURN = ("scheme", "batch_size", "category", "turns", "tokens_per_round")


def by_turn(comparison: Comparison) -> Rows:
    """Return the mean over turns of each one's tokens per round, of all repeats: of all turns, then by category where there are."""
    named = [one[0] if one else "none" for one in comparison.about.get("categories", ())]

    def means_of(lines: list[Line]) -> Rows:
        means: dict[str, list[float]] = {}
        for place in range(len(lines[0].get("spec_steps", ()))):
            steps, accepted = counted(lines, [place])
            if steps:
                for name in ("all", *named[place : place + 1]):
                    means.setdefault(name, []).append(1 + accepted / steps)
        shown = means if {*named} - {"none"} else {"all": means.get("all", [])}
        return [(name, len(ones), float(np.mean(ones))) for name, ones in shown.items() if ones]

    return each(comparison, means_of, speculating=True)


BY_CATEGORY = ("scheme", "batch_size", "category", "turn", "sequences", "tokens_per_round")
MICRO, MACRO = "all, by rounds (micro)", "all, by categories (macro)"
"""Means over all prompts: every round weighs alike, or every category."""


def by_category(comparison: Comparison) -> Rows:
    """Return tokens per round by the category and the turn of prompts, over all repeats, then the means over all, if any."""
    groups: dict[tuple[str, int], list[int]] = {}
    for index, one in enumerate(comparison.about.get("categories", ())):
        groups.setdefault(("none", 1) if one is None else tuple(one), []).append(index)

    def means_of(lines: list[Line]) -> Rows:
        counts = {name: counted(lines, places) for name, places in groups.items()}
        found = {name: 1 + accepted / steps for name, (steps, accepted) in counts.items() if steps}
        rows: Rows = [(*name, len(groups[name]), mean) for name, mean in sorted(found.items())]
        steps, accepted = (sum(one) for one in zip(*counts.values(), strict=True))
        if steps:
            for name, mean in ((MICRO, 1 + accepted / steps), (MACRO, float(np.mean([*found.values()])))):
                rows.append((name, "", sum(map(len, groups.values())), mean))
        return rows

    return each(comparison, means_of, speculating=True) if set(groups) - {("none", 1)} else []


def counted(runs: Iterable[Line], places: Sequence[int]) -> tuple[int, int]:
    """Return the rounds of some sequences, and the draft tokens that were accepted in them."""
    steps, accepted = (
        sum(line[name][place] for line in runs for place in places) for name in ("spec_steps", "accepted")
    )
    return steps, accepted


def latency(lines: list[Line]) -> Rows:
    """Return the percentiles of the sequences' latencies, each the median over repeats, the longest wait, and how many
    sequences a run has.
    """
    found = np.median([percentiles(line["latencies"]) for line in lines], axis=0)
    wait, count = max(line["longest_wait"] for line in lines), min(len(line["latencies"]) for line in lines)
    return [(*found.tolist(), wait, count)]


def percentiles(seconds: Iterable[float | None]) -> list[float]:
    """Return P50, P90 and P99 of what is there, between two values in proportion."""
    return summary([value for value in seconds if value is not None])[1:]


def serving(lines: list[Line]) -> Rows:
    """Return mean and percentiles of every figure of served requests, each the median over repeats, and of how many values."""
    runs = [metrics(line["requests"]) for line in lines if "requests" in line]
    return [
        (name, *np.median([summary(run[name]) for run in runs], axis=0).tolist(), min(len(run[name]) for run in runs))
        for name in (runs[0] if runs else ())
    ]


def request_rates(lines: list[Line], wanted: Objectives | None = None) -> Rows:
    """Return the figures of all requests of a run together, each the median over repeats."""
    runs = [[*rates(line["requests"], wanted).values()] for line in lines if "requests" in line]
    return [tuple(np.median(runs, axis=0).tolist())] if runs else []


def equality(comparison: Comparison) -> Rows:
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
    """Return whether a case's strategies are declared lossless."""
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
