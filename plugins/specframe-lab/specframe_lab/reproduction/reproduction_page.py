"""The page of a reproduction: the paper's tables, ours next to them, and figures."""

from __future__ import annotations

import math
import os
import string
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from specframe_std.output_folders import write_page

from specframe.cli.tables import per_second
from specframe_lab.comparison import comparison_figures as f
from specframe_lab.comparison.comparison_figures import Table
from specframe_lab.comparison.comparison_results import Comparison, Line
from specframe_lab.comparison.digits import texts
from specframe_lab.comparison.schemes import PLAIN_NAME, Case
from specframe_lab.report import markup, plots
from specframe_lab.report.canvas import STYLE, looks
from specframe_lab.report.images import write_figure
from specframe_lab.reproduction import published_figures
from specframe_lab.reproduction.html import rendered
from specframe_lab.reproduction.published_figures import Anatomy
from specframe_lab.reproduction.reproduce import ASSISTED, PATIENCE, SPECULATING, WINDOW, Reproduction, unfilled

PAGE, HTML = "reproduction.md", "reproduction.html"
NAMES = {
    PLAIN_NAME: "plain decoding",
    ASSISTED: "transformers' assisted",
    "padding": "padding (DSD)",
    "masking": "masking (BSP)",
}
OVERHEAD = ("align", "accept", "schedule")
"""The stages of a round that neither draft nor verify."""
NONE = "-"
BUILT_IN = ", built-in starts of Python code: no prompts were given"

Rows = Sequence[Sequence[str]]
Runs = list[Line]


def write_reproduction(found: Reproduction, folder: str | os.PathLike[str]) -> Path:
    """Write the page, as Markdown and as HTML, and its figures, as SVG and as PNG; return the path of the HTML."""
    there, tables, pictures = Path(folder), drawn(found), {}
    painters = {"anatomy": plots.stage_shares, "latency": plots.latency, "tail": plots.latency}
    with matplotlib.rc_context(STYLE):
        for table in tables:
            look = looks(dict.fromkeys(row[0] for row in table.rows))
            figure = painters.get(table.name, plots.against_batch_size)(table, look)
            pictures[table.name] = write_figure(figure, table.name, there)
    text, page = markdown(found, pictures), there / HTML
    write_page(there / PAGE, text)
    write_page(page, rendered(text, pictures))
    return page


def drawn(found: Reproduction) -> list[Table]:
    """Return the figures that have data."""
    speed = found.parts["speed"]
    tables = [
        Table("anatomy", "", "share of the time", "", f.each(speed, f.stage_shares)),
        Table("overhead", "", "share of the time", "", f.by_cell(speed, overhead, speculating=True, bounds=f.spread)),
        Table("grouping", "", "share of rounds", "", grouping_rates(found)),
        Table("throughput", "", "tokens/s", "", f.by_cell(speed, f.figure("tokens_per_second"), bounds=f.spread)),
        Table("latency", "", "s", "", latencies(found)),
        Table("tail", "", "passes", "", f.each(found.parts["bursty"], f.latency)),
    ]
    return [table for table in tables if table.rows]


def markdown(found: Reproduction, figures: Collection[str]) -> str:
    """Return the page's text; ``figures`` names those that were drawn."""
    tables = {
        "setup": (("setting", "published", "here"), setup(found)),
        "match": (MATCH_COLUMNS, match(found.parts["match"])),
        "anatomy": (ANATOMY_COLUMNS, anatomies(found)),
        "overhead": (("batch", "EQSPEC, published", *SPECULATING), overheads(found)),
        "grouping": (("batch", *GROUPINGS), groupings(found)),
        "throughput": (("batch", PLAIN_NAME, *SPECULATING), throughputs(found)),
        "latency": (LATENCY_COLUMNS, waits(latencies(found))),
        "tail": (TAIL_COLUMNS, tails(found)),
    }
    parts = {name: table(*given) for name, given in tables.items()}
    for name in figures:
        parts[name] += f"\n\n![{name}]({name}.svg)"
    template = string.Template(markup.part(PAGE, "reproduction"))
    facts = {
        "unfilled": listed("Some batch sizes are larger than the number of prompts:", unfilled(counts(found))),
        "failed": listed("These could not be run and are missing below:", faults(found)),
        "command": found.about["command"],
        "arriving": arriving(found, "arrivals"),
        "bursting": arriving(found, "bursty"),
        "size": anatomy_size(found),
    }
    return template.substitute(parts, **facts, pairs=", ".join(published_figures.PAIRS), patience=PATIENCE)


def counts(found: Reproduction) -> dict[str, tuple[int, list[int]]]:
    """Return the number of prompts and the batch sizes of each part that has run."""
    kept = {name: [one for case in part.cases if (one := f.tokens(part, case))] for name, part in found.parts.items()}
    return {
        name: (len(ids[0]), [case.batch_size for case in found.parts[name].cases]) for name, ids in kept.items() if ids
    }


def faults(found: Reproduction) -> list[str]:
    """Return the cells that could not be run, and why."""
    return [
        f"{name}, {case}: {fault}"
        for name, part in found.parts.items()
        for case in part.cases
        if (fault := part.fault(case))
    ]


def listed(heading: str, sentences: Sequence[str]) -> str:
    """Return a list under a heading; "" where it would be empty."""
    return "\n".join([f"\n\n{heading}\n", *(f"- {sentence}" for sentence in sentences)]) if sentences else ""


def table(columns: Sequence[str], rows: Rows) -> str:
    """Return a table; a remark where it would have no rows."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else "Not measured yet."


def setup(found: Reproduction) -> Rows:
    """Return how the published runs and these were set up."""
    kept, settings = found.about["environment"], found.about["settings"]
    cell = found.parts["speed"].cases[-1].cell

    def setting(name: str) -> str:
        values: dict[str, list[str]] = {}
        for part in found.parts:
            values.setdefault(str(settings[f"{part}: {name}"]), []).append(part)
        return ", ".join(value if len(values) == 1 else f"{value} ({', '.join(of)})" for value, of in values.items())

    here = {
        "device": f"{kept['device']}, {kept['threads']} thread{'s' * (kept['threads'] != 1)}",
        "precision": cell["dtype"],
        "pairs": f"{Path(str(cell['target'])).name} / {Path(str(cell['drafter'])).name}",
        "transformers": f"{kept['transformers']}, torch {kept['torch']}",
        "draft length": cell["draft_length"],
        "prompts": f"{setting('prompts')}{BUILT_IN if found.built_in else ''}",
        "longest prompt": f"{setting('max_prompt_tokens')} tokens",
        "new tokens": setting("max_new_tokens"),
        "window of exspec": f"{WINDOW}, patience {PATIENCE} rounds",
        "runs of each cell": setting("repeats"),
    }
    return [(name, published_figures.SETUP.get(name, NONE), value) for name, value in here.items()]


# ---- table 1 ---------------------------------------------------------------------------------------------------------

MATCH_COLUMNS = ("scheme", "batch", "published", "to batch 1", "to the same batch", "ties", "bugs")


def match(comparison: Comparison) -> Rows:
    """Return the rows of table 1, scheme by scheme."""
    return [match_row(comparison, case) for case in comparison.cases if comparison.runs(case)]


def match_row(comparison: Comparison, case: Case) -> Sequence[str]:
    """Return one scheme's row at one batch size."""
    line = comparison.runs(case)[0]
    figures = published_figures.MATCH.get((case.scheme, case.batch_size), ())
    return (
        NAMES.get(case.scheme, case.scheme),
        str(case.batch_size),
        ", ".join(f"{exact:.1f} / {partial:.1f}" for exact, partial in figures) or NONE,
        *(agreement(comparison, case, size) for size in (1, case.batch_size)),
        *(str(line.get(kind, NONE)) for kind in ("ties", "bugs")),
    )


def agreement(comparison: Comparison, case: Case, size: int) -> str:
    """Return exact and partial match with plain decoding at some batch size."""
    plain = comparison.plain(case, size)
    if plain is None or plain.key == case.key or not (reference := f.tokens(comparison, plain)):
        return NONE
    exact, partial = f.matches(f.tokens(comparison, case), reference)
    return f"{100 * exact / len(reference):.1f} / {100 * partial:.1f}"


# ---- table 2 and overhead --------------------------------------------------------------------------------------------

ANATOMY_COLUMNS = (
    *("scheme", "figures", "tokens/s", "verify calls", "ms per call", "tokens per call"),
    *("verify", "draft", "overhead", "of it align"),
)


def anatomy_size(found: Reproduction) -> int:
    """Return the batch size of table 2: the published one or, where that was not measured, the nearest."""
    return min(found.parts["speed"].batch_sizes, key=lambda size: abs(size - published_figures.ANATOMY_BATCH_SIZE))


def anatomies(found: Reproduction) -> Rows:
    """Return the rows of table 2, each published one before ours."""
    runs = runs_at(found.parts["speed"], anatomy_size(found))
    rows: list[Sequence[str]] = []
    for scheme in (scheme for scheme in SPECULATING if scheme in runs):
        if scheme in published_figures.ANATOMY:
            rows.append((scheme, "published", *anatomy_row(published_figures.ANATOMY[scheme]), NONE))
        rows.append((scheme, "here", *anatomy_row(anatomy(runs[scheme])), f"{median(runs[scheme], align):.1%}"))
    return rows


def runs_at(comparison: Comparison, size: int) -> dict[str, Runs]:
    """Return the lines of every scheme that has run at a batch size."""
    found = {case.scheme: list(comparison.runs(case).values()) for case in comparison.timed if case.batch_size == size}
    return {scheme: runs for scheme, runs in found.items() if runs}


def median(runs: Runs, value: Callable[[Line], float]) -> float:
    """Return the median over runs of some value."""
    return f.spread(map(value, runs))[0]


def anatomy(runs: Runs) -> Anatomy:
    """Return where the time of one cell's runs goes."""
    calls, speed = f.figure("rounds"), f.figure("tokens_per_second")
    return (
        median(runs, speed),
        median(runs, calls),
        median(runs, lambda line: 1000 * seconds(line)["verify"] / calls(line)),
        median(runs, lambda line: line["figures"]["tokens"] / calls(line)),
        median(runs, lambda line: share(line, ["verify"])),
        median(runs, lambda line: share(line, ["draft"])),
        median(runs, overhead),
    )


def anatomy_row(one: Anatomy) -> Sequence[str]:
    """Return one row of table 2."""
    speed, calls, milliseconds, tokens, *shares = one
    return f"{speed:.1f}", f"{calls:,.0f}", f"{milliseconds:.1f}", f"{tokens:.1f}", *(f"{one:.1%}" for one in shares)


def seconds(line: Line) -> dict[str, float]:
    """Return the seconds of the stages of decoding rounds."""
    stages = line["figures"]["stage_seconds"]
    return {stage: stages.get(stage, 0.0) for stage in ("draft", "verify", *OVERHEAD)}


def share(line: Line, stages: Iterable[str]) -> float:
    """Return some stages' share of the time of decoding rounds."""
    spent = seconds(line)
    return sum(spent[stage] for stage in stages) / (sum(spent.values()) or 1.0)


def overhead(line: Line) -> float:
    """Return the share of the time that neither drafts nor verifies."""
    return share(line, OVERHEAD)


def align(line: Line) -> float:
    """Return the share of the time that realigns."""
    return share(line, ["align"])


def overheads(found: Reproduction) -> Rows:
    """Return overhead and realign shares by batch size."""

    def both(runs: Runs) -> str:
        return f"{median(runs, overhead):.1%} / {median(runs, align):.1%}"

    rows = by_size(found.parts["speed"], SPECULATING, both)
    return [(size, published_figures.OVERHEAD.get(int(size), NONE), *cells) for size, *cells in rows]


def by_size(comparison: Comparison, schemes: Collection[str], text: Callable[[Runs], str]) -> Rows:
    """Return a row per batch size and a column per scheme, the text of its lines."""
    found = {size: runs_at(comparison, size) for size in comparison.batch_sizes}
    rows = [(str(size), *(text(runs[s]) if s in runs else NONE for s in schemes)) for size, runs in found.items()]
    return rows if any(found.values()) else []


# ---- grouping, throughput, latency -----------------------------------------------------------------------------------

GROUPINGS = tuple(
    f"{kind}, {of}" for kind in published_figures.GROUPING for of in ("published", "bounded", "unbounded")
)
TAIL_COLUMNS = (
    *("scheme", "batch", "ttft P50", "P90", "P99"),
    *("latency P50", "P90", "P99", "sequences", "longest wait, rounds", "bound"),
)
LATENCY_COLUMNS = ("scheme", "batch", "P50 s", "P90 s", "P99 s", "sequences", "longest wait, rounds", "bound")


def grouping_rates(found: Reproduction) -> list[tuple[Any, ...]]:
    """Return the grouping rates that were measured and those published, as they are drawn."""
    rows: list[tuple[Any, ...]] = []
    for kind, figures in published_figures.GROUPING.items():
        own = f.by_cell(found.parts[kind], f.figure("grouping_rate"))
        sizes = {row[1] for row in own}
        rows += [(f"{kind}, {scheme}", *rest) for scheme, *rest in own]
        rows += [(f"{kind}, published", size, *[rate] * 3, 1) for size, rate in figures.items() if size in sizes]
    return rows


def groupings(found: Reproduction) -> Rows:
    """Return grouping rates by batch size, for prompts of one length and of many, and the rows of an average round."""
    rates = {row[:2]: f"{row[2]:.1%}" for row in grouping_rates(found)}
    for kind in published_figures.GROUPING:
        for scheme, size, rows, *_ in f.by_cell(found.parts[kind], rows_per_round):
            rates[f"{kind}, {scheme}", size] += f" ({rows:.1f})"
    sizes = sorted({size for _, size in rates})
    return [(str(size), *(rates.get((name, size), NONE) for name in GROUPINGS)) for size in sizes]


def rows_per_round(line: Line) -> float:
    """Return the rows that speculated in an average round."""
    return line["figures"]["num_spec_steps"] / line["figures"]["rounds"]


def throughputs(found: Reproduction) -> Rows:
    """Return tokens per second by batch size."""

    def ranged(runs: Runs) -> str:
        middle, low, high = f.spread(map(f.figure("tokens_per_second"), runs))
        return per_second(middle) + (f" ({per_second(low)} to {per_second(high)})" if len(runs) > 1 else "")

    return by_size(found.parts["speed"], (PLAIN_NAME, *SPECULATING), ranged)


def arriving(found: Reproduction, part: str) -> str:
    """Return when the prompts of a part arrive, as a sentence without its end."""
    arrivals = found.about["settings"].get(f"{part}: arrivals")
    if not arrivals:
        return "All prompts are there from the start, short ones first"
    return f"Prompts arrive as `--{part} {arrivals.partition(' ')[0]}` says"


def latencies(found: Reproduction) -> list[tuple[Any, ...]]:
    """Return percentiles of latency and the longest wait; of prompts that arrive over time where there are such."""
    rows = f.each(found.parts.get("arrivals", found.parts["speed"]), f.latency)
    return [row for row in rows if row[0] in SPECULATING]


def tails(found: Reproduction) -> Rows:
    """Return percentiles of the passes to the first token and to the end, the longest wait and what bounds it."""
    first = {row[:2]: sound(row[4:7], row[-1]) for row in f.each(found.parts["bursty"], f.serving) if row[2] == "ttft"}
    rows = waits(f.each(found.parts["bursty"], f.latency))
    firsts = texts([first[row[0], int(row[1])] for row in rows])
    return [(*row[:2], *ttft, *row[2:]) for row, ttft in zip(rows, firsts, strict=True)]


def waits(latencies: Iterable[tuple[Any, ...]]) -> Rows:
    """Return percentiles of latency, the longest wait and what bounds it."""
    rows = []
    for scheme, size, *percentiles, wait, count in latencies:
        bound = PATIENCE + math.ceil(max(WINDOW, size) / size) if scheme == "exspec" else None
        rows.append((scheme, size, *sound(percentiles, count), count, wait, bound))
    return texts(rows)


def sound(percentiles: Sequence[float], count: int) -> tuple[float, ...]:
    """Return P50, P90 and P99 of ``count`` values; P99 of too few, which lies between the two largest, is not a number."""
    return (*percentiles[:2], percentiles[2] if count >= f.ENOUGH_FOR_P99 else math.nan)
