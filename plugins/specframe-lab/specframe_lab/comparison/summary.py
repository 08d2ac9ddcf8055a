"""A comparison in a few words: one row per cell, and what was found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from specframe_std.run_command.run_report import HALF

from specframe_lab.comparison import comparison_figures as f
from specframe_lab.comparison.comparison_figures import CONFIDENCE, ENOUGH_FOR_P99, SPENT, Table
from specframe_lab.comparison.comparison_results import Comparison
from specframe_lab.comparison.digits import texts
from specframe_lab.comparison.oracle import ALL
from specframe_lab.comparison.schemes import BETWEEN, is_plain
from specframe_lab.comparison.shared_parts import parts_told
from specframe_lab.comparison.transformers_generate import of_transformers

COLUMNS = (
    *("scheme", "batch", "scheduler", "KV backend", "speed-up (95%)", "tokens/s", "tokens / round"),
    *("realign", "grouping", "padding", "filler", "P50 s", "P99 s", "equal", "KV MB"),
)
"""The columns of the summary. Where the device's memory is known the last one has that, too."""
FEW_FOR_P99 = f"P99 needs {ENOUGH_FOR_P99} sequences"
FAILED = "failed"
"""Text shown in place of the figures of a case that could not be run."""


ABOUT_MORE = ("break_even", "side_by_side")
"""Tables whose rows are of several batch sizes or schemes."""


def categories(tables: dict[str, Table]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return tokens per round with a column for each category and turn, and a row for each cell; no row without categories."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for scheme, size, category, turn, _, mean in tables["acceptance_by_category"].rows:
        name = f"{category}, turn {turn}" if turn not in ("", 1) else category
        found.setdefault((scheme, size), {})[name] = mean
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    rows = [(scheme, str(size), *(means.get(name) for name in names)) for (scheme, size), means in found.items()]
    return ["scheme", "batch", *names], texts(rows)


def filled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return a table without the columns that no row has a value in."""
    places = [place for place in range(len(columns)) if place < 2 or any(row[place] != "-" for row in rows)]
    return [columns[place] for place in places], [tuple(row[place] for place in places) for row in rows]


def columns(comparison: Comparison) -> tuple[str, ...]:
    """Return the columns with the unit of a comparison's clock: seconds, or passes of the target."""
    unit = clock_unit(comparison)
    names = [f"{column[:-1]}{unit}" if column.endswith(" s") else column for column in COLUMNS]
    return (*names[:-1], "KV/device MB" if f.device_bytes(comparison) else names[-1])


def clock_unit(comparison: Comparison) -> str:
    """Return the short name of the unit that latencies are in."""
    return "passes" if comparison.about["settings"].get("clock") == "passes" else "s"


def summary(comparison: Comparison, tables: dict[str, Table]) -> list[tuple[str, ...]]:
    """Return one row of texts per timed case, by batch size; of a case that failed, its name and that it failed."""
    found = {name: {row[:2]: row[2:] for row in table.told} for name, table in tables.items() if name not in ABOUT_MORE}
    rows: list[tuple[Any, ...]] = []
    for size in comparison.batch_sizes:
        for case in comparison.timed:
            if case.batch_size == size:
                parts = {} if of_transformers(case) else case.cell
                named = case.scheme, str(size), str(parts.get("schedule", "-")), str(parts.get("kv", "-"))
                if comparison.fault(case):
                    rows.append((*named, FAILED, *[None] * (len(COLUMNS) - len(named) - 1)))
                else:
                    rows.append((*named, *cells({name: of.get((case.scheme, size)) for name, of in found.items()})))
    return texts(rows)


SERVED = ("ttft", "tpot", "itl", "e2el")
"""The figures of requests in the summary."""


def served_columns(comparison: Comparison) -> tuple[str, ...]:
    """Return the columns of :func:`requests`; those of goodput are there where there are objectives."""
    unit = clock_unit(comparison)
    one = unit.removesuffix("es")
    percentiles = (f"{name} P50/P90/P99 {unit}" for name in SERVED)
    goodput = (f"good requests/{one}", "good") if comparison.about.get("slo") else ()
    return "scheme", "batch", *percentiles, f"tokens/{one} per user", f"requests/{one}", *goodput


def requests(comparison: Comparison, tables: dict[str, Table]) -> list[tuple[str, ...]]:
    """Return one row of texts per timed case that has run: percentiles of the figures of its requests, and their rates."""
    found = {row[:3]: row[3:] for row in tables["serving"].told}
    rows: list[tuple[Any, ...]] = []
    for scheme, size, _, throughput, _, _, _, goodput, fraction in tables["request_rates"].rows:
        percentiles = [tuple(found[scheme, size, name][1:4]) for name in SERVED]
        per_user = found[scheme, size, "output_token_throughput_per_user"][1]
        good = (goodput, f"{fraction:.1%}") if comparison.about.get("slo") else ()
        rows.append((scheme, str(size), *percentiles, per_user, throughput, *good))
    return texts(rows)


def cells(found: dict[str, Any]) -> tuple[Any, ...]:
    """Return the cells of one row from the case's row in each table."""
    return (
        ranged(found["speed_up"]),
        median(found["throughput"]),
        median(found["acceptance_length"]),
        share(found["realign_share"]),
        share(found["grouping_rate"]),
        share(found["padding_share"]),
        share(found["filler_share"]),
        median(found["latency"]),
        found["latency"][2] if found["latency"] else None,
        f"{found['equality'][1]}/{found['equality'][0]}" if found["equality"] else "-",
        megabytes(found["peak_kv_bytes"], found["peak_device_bytes"]),
    )


def ranged(row: Any) -> str:
    """Return a median with its interval."""
    if not row:
        return "-"
    median, low, high, repeats = row
    return f"{median:.2f}" + (f" ({low:.2f} to {high:.2f})" if repeats > 1 else "")


def median(row: Any) -> float | None:
    """Return the median, None where nothing was measured."""
    return row[0] if row else None


def megabytes(caches: Any, device: Any) -> Any:
    """Return the medians of bytes in megabytes: of caches, and of the device where they are known, or None if nothing is."""
    known = [row[0] / 1e6 for row in (caches, device) if row]
    return tuple(known) if len(known) > 1 else known[0] if known else None


def share(row: Any) -> str:
    """Return a share in percent."""
    return f"{row[0]:.1%}" if row and not math.isnan(row[0]) else "-"


def amount(value: float) -> str:
    """Return a number with three digits that count, large ones in full."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def findings(comparison: Comparison, tables: dict[str, Table]) -> list[str]:
    """Return the main findings, one sentence each; the first is the headline."""
    return [
        headline(tables) if tables["throughput"].rows else "Nothing could be measured.",
        *failures(comparison),
        *reason(comparison, tables),
        *bounded(tables),
        *parts_told(comparison.cases),
        *beside(tables["side_by_side"]),
        *moving(tables["realign_share"]),
        *most(tables["throughput"]),
        *even(tables["break_even"]),
        *prices(tables["bitwise_price"]),
        *unequal(comparison, tables["equality"]),
        *tails(comparison, tables["latency"]),
        *noise(comparison),
        *(table.nothing for table in tables.values() if table.empty),
    ]


def failures(comparison: Comparison) -> list[str]:
    """Return how many combinations could not be run, and why each."""
    faults = {str(case): fault for case in comparison.cases if (fault := comparison.fault(case))}
    count = [f"{len(faults)} of {len(comparison.cases)} combinations could not be run."] if faults else []
    return count + [f"{case} could not be run: {fault.rstrip('.')}." for case, fault in faults.items()]


def fastest(tables: dict[str, Table]) -> tuple[tuple[Any, ...] | None, bool]:
    """Return the row of the fastest scheme whose output is plain decoding's own, or declared so, and whether it surely is faster
    than plain decoding.

    Of schemes that surely are it is the one with the highest lower bound: the highest median of several would often be chance.
    """
    equal = {row[:2]: row for row in tables["equality"].rows}
    rows = [row for row in tables["speed_up"].rows if row[:2] in equal]
    rows = [row for row in rows if equal[row[:2]][6]] or rows
    rows = [row for row in rows if equal[row[:2]][2] == equal[row[:2]][3]] or rows
    if sure := [row for row in rows if f.told_apart(*row[3:]) and row[3] > 1]:
        return max(sure, key=itemgetter(3)), True
    return max(rows, key=itemgetter(2), default=None), False


def headline(tables: dict[str, Table]) -> str:
    """Return which scheme was the fastest, by how much, and how surely."""
    best, sure = fastest(tables)
    if best is None:
        return "Nothing but plain decoding was measured that can be compared with it token for token."
    scheme, size, median, low, high, repeats = best
    sequences, exact = next(row[2:4] for row in tables["equality"].rows if row[:2] == best[:2])
    if sure or (repeats == 1 and median >= 1):
        start, verb = "", "decodes"
    elif repeats > 1 and high >= 1:
        start, verb = "No scheme is told apart from plain decoding as faster: at best, ", "is"
    else:
        start, verb = "Nothing beats plain decoding here: at best, ", "is"
    return (
        f"{start}{scheme} {verb} {median:.2f} times as fast as plain decoding at batch size {size}{bounds(low, high, repeats)}, "
        f"with the same tokens in {exact} of {sequences} sequences."
    )


def bounds(low: float, high: float, repeats: int) -> str:
    """Return how sure a ratio is."""
    if repeats == 1:
        return " (one run, which says nothing of how sure that is)"
    return f" ({CONFIDENCE} confidence: {low:.2f} to {high:.2f}, {repeats} repeats)"


def reason(comparison: Comparison, tables: dict[str, Table]) -> list[str]:
    """Return why the fastest scheme is as fast as it is: tokens and seconds of a pass of the target, whose ratio is its speed."""
    best, _ = fastest(tables)
    if best is None:
        return []
    case = next(case for case in comparison.timed if (case.scheme, case.batch_size) == best[:2])
    plain = comparison.plain(case, case.batch_size)
    gained, took, spent = f.per_pass(comparison, case)
    less, shorter, _ = f.per_pass(comparison, plain) if plain else (0.0, 0.0, {})
    if not (gained and less and took and shorter):
        return []
    shares = sorted(((seconds / took, stage) for stage, seconds in spent.items()), reverse=True)
    parts = ", ".join(f"{share:.0%} {SPENT[stage]}" for share, stage in shares if share >= LEAST_SHARE)
    return [
        f"A pass of the target gives {gained:.1f} tokens with {case.scheme} at batch size {case.batch_size}, {less:.1f} with plain "
        f"decoding, and takes {took / shorter:.2f} times as long with all that goes with it: {parts}."
    ]


def bounded(tables: dict[str, Table]) -> list[str]:
    """Return how fast the fastest scheme could have been at most with other draft lengths, and all schemes together."""
    best, _ = fastest(tables)
    rows = [row for row in tables["oracle"].rows if best and row[1] == best[1]]
    own, together = ([row[5] for row in rows if row[0] == name] for name in (best and best[0], ALL))
    if not best or not own or math.isnan(own[0]):
        return []
    every = f", and with the best scheme for each {together[0]:.2f} times" if together else ""
    return [
        f"Had {best[0]} known at batch size {best[1]} how many draft tokens of each row and round are accepted, it would have "
        f"decoded at most {own[0]:.2f} times as fast as plain decoding{every}."
    ]


LEAST_SHARE = 0.05
"""Share of the time from which a stage is named."""
NAMED = 6
"""Schemes that are named one by one."""


def beside(table: Table) -> list[str]:
    """Return, for each batch size, which scheme is the fastest, how many times as fast as each other, and why."""
    found = []
    for size, faster in dict.fromkeys(row[:2] for row in table.rows):
        rows = [row for row in table.rows if row[:2] == (size, faster)]
        apart = sorted((row for row in rows if f.told_apart(*row[4:7]) and row[4] > 1), key=itemgetter(3))
        alike = [row[2] for row in rows if row not in apart]
        words = [
            f"{times:.2f} ({low:.2f} to {high:.2f}) times as fast as {slower}"
            for _, _, slower, times, low, high, *_ in apart
        ]
        same = f"; {together(alike, len(rows) + 1)} cannot be told apart from it" if alike else ""
        said = f"{faster} is {', '.join(words[:NAMED])}{same}"
        if not words:
            said = f"no scheme is told apart from {faster}, which had the most tokens per second"
        why = [f"{row[7][:1].upper()}{row[7][1:]}." for row in apart[:NAMED] if row[7]]
        found.append(" ".join([f"At batch size {size} {said}.", *why]))
    return found


def moving(table: Table) -> list[str]:
    """Return how much of their time schemes spent on moving rows at the largest batch size, where it is a hundredth or more."""
    largest = max((row[1] for row in table.rows), default=0)
    shares = [(row[2], row[0]) for row in table.rows if row[1] == largest and row[2] >= LEAST_MOVING]
    words = ", ".join(f"{scheme} {share:.1%}" for share, scheme in sorted(shares, reverse=True))
    return [f"Share of the time spent on moving rows at batch size {largest}: {words}."] if shares else []


LEAST_MOVING = 0.01
"""Share of the time on moving rows from which it is named."""


def most(table: Table) -> list[str]:
    """Return where the most tokens per second came from, what plain decoding gave there, and what may give as many."""
    if not table.rows:
        return []
    best = max(table.rows, key=itemgetter(2))
    scheme, size, median, low, *_ = best
    plain = [row[2] for row in table.rows if row[1] == size and is_plain(row[0])]
    words = "" if is_plain(scheme) or not plain else f", where plain decoding gave {amount(max(plain))}"
    near = [f"{row[0]} at {row[1]}" for row in table.rows if row is not best and row[4] >= low and row[5] > 1]
    may = f"; the intervals of {together(near, len(table.rows))} reach as far" if near else ""
    return [f"Most tokens per second: {amount(median)} with {scheme} at batch size {size}{words}{may}."]


NOISY = 1.25
"""Factor between the fastest and the slowest run of one cell from which the machine counts as noisy."""


def noise(comparison: Comparison) -> list[str]:
    """Return which cell's runs differ most, where they differ by much."""
    found = []
    for case in comparison.timed:
        rates = [line["figures"]["tokens_per_second"] for line in comparison.runs(case).values()]
        if len(rates) > 1 and max(rates) >= NOISY * min(rates):
            found.append((max(rates) / (min(rates) or 1), case, rates))
    if not found:
        return []
    _, case, rates = max(found, key=itemgetter(0))
    more = f", and {len(found) - 1} more of {len(comparison.timed)} cells did so" if len(found) > 1 else ""
    return [
        f"The machine was noisy: {case} gave between {amount(min(rates))} and {amount(max(rates))} tokens per second in "
        f"{len(rates)} repeats{more}. A machine with nothing else to do, or more --repeats, makes intervals narrower."
    ]


def prices(table: Table) -> list[str]:
    """Return what bitwise equality costs each scheme."""
    found = [
        f"{scheme.removesuffix(f'{BETWEEN}bitwise')} {ranged(row)} at batch size {size}"
        for scheme, size, *row in table.rows
    ]
    return [f"Bitwise equality takes this many times the time: {', '.join(found)}."] if found else []


def even(table: Table) -> list[str]:
    """Return where each scheme stops paying."""
    sharing: dict[str, list[str]] = {}
    for scheme, _, _, words in table.rows:
        sharing.setdefault(words, []).append(scheme)
    found = "; ".join(f"{together(schemes, len(table.rows))}: {words}" for words, schemes in sharing.items())
    return [f"Break-even batch size of {found}."] if found else []


def together(schemes: list[str], count: int) -> str:
    """Return some of ``count`` schemes in few words."""
    if len(schemes) == count > 3:
        return "all schemes"
    return ", ".join(schemes) if len(schemes) < 7 else f"{', '.join(schemes[:5])} and {len(schemes) - 5} others"


def unequal(comparison: Comparison, table: Table) -> list[str]:
    """Return which schemes gave other tokens than plain decoding, each where it did so most."""
    worst: dict[str, tuple[int, int, int, bool]] = {}
    for scheme, size, sequences, exact, _, _, promised, _ in table.rows:
        if exact < sequences and (scheme not in worst or exact < worst[scheme][0]):
            worst[scheme] = exact, sequences, size, promised
    rounded = [case.scheme for case in comparison.timed if case.cell["dtype"] in HALF]
    ties = {True: ", in half precision ties of two logits may be why", False: ""}
    return [
        f"{scheme} gives other tokens than plain decoding at batch size 1: {exact} of {sequences} sequences are equal "
        f"at batch size {size}; "
        + (
            f"it is declared lossless{ties[scheme in rounded]}: see specframe verify."
            if promised
            else "it is not declared lossless."
        )
        for scheme, (exact, sequences, size, promised) in worst.items()
    ]


def tails(comparison: Comparison, table: Table) -> list[str]:
    """Return the schemes with the shortest and the longest tail at the largest batch size; of few sequences the medians."""
    largest = max((row[1] for row in table.rows), default=0)
    count = min((row[6] for row in table.rows if row[1] == largest), default=0)
    column, name, why = (4, "P99", "") if count >= ENOUGH_FOR_P99 else (2, "Median", f"; {FEW_FOR_P99}")
    rows = sorted((row for row in table.rows if row[1] == largest), key=itemgetter(column))
    if len(rows) < 2:
        return []
    (best,), (worst,) = texts([(rows[0][column],), (rows[-1][column],)])
    ends = f"{best} {table.unit} with {rows[0][0]}, {worst} {table.unit} with {rows[-1][0]}"
    named = {(case.scheme, case.batch_size): case for case in comparison.timed}
    ends_of = named[rows[0][:2]], named[rows[-1][:2]]
    times = f.ratios(comparison, *ends_of, lambda line: f.percentiles(line["latencies"])[column - 2])
    apart = "" if f.told_apart(*f.interval(times)[1:], len(times)) else ", which are not told apart"
    return [f"{name} latency of {count} sequences at batch size {largest}: {ends}{apart}{why}."]
