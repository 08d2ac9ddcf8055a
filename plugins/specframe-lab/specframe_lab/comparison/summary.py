"""A comparison in a few words: one row per cell, and what was found."""

from __future__ import annotations

from typing import Any

from specframe_lab.comparison.digits import texts
from specframe_lab.comparison.figures import ENOUGH_FOR_P99, Table, device_bytes
from specframe_lab.comparison.results import Comparison
from specframe_lab.comparison.schemes import BETWEEN, is_plain

COLUMNS = (
    "scheme",
    "batch",
    "speed-up (range)",
    "tokens/s",
    "tokens / round",
    "realign",
    "grouping",
    "padding",
    "filler",
    "P50 s",
    "P99 s",
    "equal",
    "KV MB",
)
"""The columns of the summary; all but the first hold numbers. Where the device's memory is known the last one has that, too."""
FEW_FOR_P99 = f"P99 is told from {ENOUGH_FOR_P99} sequences on"
FAILED = "failed"
"""Text shown in place of the figures of a case that could not be run."""


def columns(comparison: Comparison) -> tuple[str, ...]:
    """Return the columns with the unit of a comparison's clock: seconds, or passes of the target."""
    unit = clock_unit(comparison)
    names = [f"{column[:-1]}{unit}" if column.endswith(" s") else column for column in COLUMNS]
    return (*names[:-1], "KV/device MB" if device_bytes(comparison) else names[-1])


def clock_unit(comparison: Comparison) -> str:
    """Return the short name of the unit that latencies are in."""
    return "passes" if comparison.about["settings"].get("clock") == "passes" else "s"


def summary(comparison: Comparison, tables: dict[str, Table]) -> list[tuple[str, ...]]:
    """Return one row of texts per timed case, by batch size; of a case that failed, its name and that it failed."""
    found = {name: {row[:2]: row[2:] for row in table.told} for name, table in tables.items() if name != "break_even"}
    rows: list[tuple[Any, ...]] = []
    for size in comparison.batch_sizes:
        for case in comparison.timed:
            if case.batch_size == size:
                named = case.scheme, str(size)
                if comparison.fault(case):
                    rows.append((*named, FAILED, *[None] * (len(COLUMNS) - 3)))
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
    return (
        "scheme",
        "batch",
        *percentiles,
        f"tokens/{unit.removesuffix('es')} per user",
        f"requests/{unit.removesuffix('es')}",
        *goodput,
    )


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
    """Return a median with the range it lies in."""
    if not row:
        return "-"
    median, low, high, repeats = row
    return f"{median:.2f}" + (f" ({low:.2f} to {high:.2f})" if repeats > 1 else "")


def median(row: Any) -> float | None:
    """Return the median, None where nothing was measured."""
    return row[0] if row else None


def megabytes(caches: Any, device: Any) -> Any:
    """Return the medians of bytes in megabytes: of caches, and of the device where they are known; None: nothing is."""
    known = [row[0] / 1e6 for row in (caches, device) if row]
    return tuple(known) if len(known) > 1 else known[0] if known else None


def share(row: Any) -> str:
    """Return a share in percent."""
    return f"{row[0]:.1%}" if row else "-"


def amount(value: float) -> str:
    """Return a number with three digits that count, large ones in full."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def findings(comparison: Comparison, tables: dict[str, Table]) -> list[str]:
    """Return the main findings, one sentence each; the first is the headline."""
    return [
        headline(tables) if tables["throughput"].rows else "Nothing could be measured.",
        *failures(comparison),
        *most(tables["throughput"]),
        *even(tables["break_even"]),
        *prices(tables["bitwise_price"]),
        *unequal(tables["equality"]),
        *tails(tables["latency"]),
    ]


def failures(comparison: Comparison) -> list[str]:
    """Return how many combinations could not be run, and why each."""
    faults = {str(case): fault for case in comparison.cases if (fault := comparison.fault(case))}
    count = [f"{len(faults)} of {len(comparison.cases)} combinations could not be run."] if faults else []
    return count + [f"{case} could not be run: {fault.rstrip('.')}." for case, fault in faults.items()]


def headline(tables: dict[str, Table]) -> str:
    """Return which scheme was the fastest of those whose output is plain decoding's own, or promises to be."""
    equal = {row[:2]: row for row in tables["equality"].rows}
    rows = [row for row in tables["speed_up"].rows if row[:2] in equal]
    rows = [row for row in rows if equal[row[:2]][6]] or rows
    rows = [row for row in rows if equal[row[:2]][2] == equal[row[:2]][3]] or rows
    if not rows:
        return "Nothing was measured beside plain decoding that can be compared with it token for token."
    scheme, size, median, low, high, repeats = max(rows, key=lambda row: row[2])
    _, _, sequences, exact, *_ = equal[scheme, size]
    spread = f" ({low:.2f} to {high:.2f} over {repeats} repeats)" if repeats > 1 else ""
    start, verb = ("", "decodes") if median >= 1 else ("Nothing beats plain decoding here: at best, ", "is")
    return (
        f"{start}{scheme} {verb} {median:.2f} times as fast as plain decoding at batch size {size}{spread}, with the "
        f"same tokens in {exact} of {sequences} sequences."
    )


def most(table: Table) -> list[str]:
    """Return where the most tokens per second came from, and what plain decoding gave there."""
    if not table.rows:
        return []
    scheme, size, median, *_ = max(table.rows, key=lambda row: row[2])
    beside = [row[2] for row in table.rows if row[1] == size and is_plain(row[0])]
    words = "" if is_plain(scheme) or not beside else f", where plain decoding gave {amount(max(beside))}"
    return [f"Most tokens per second: {amount(median)} with {scheme} at batch size {size}{words}."]


def prices(table: Table) -> list[str]:
    """Return what bitwise equality costs each scheme."""
    found = [
        f"{scheme.removesuffix(f'{BETWEEN}bitwise')} {median:.2f} at batch size {size}"
        for scheme, size, median, *_ in table.rows
    ]
    return [f"Bitwise equality takes so many times the time: {', '.join(found)}."] if found else []


def even(table: Table) -> list[str]:
    """Return where each scheme stops paying."""
    sharing: dict[str, list[str]] = {}
    for scheme, _, words in table.rows:
        sharing.setdefault(words, []).append(scheme)
    found = "; ".join(f"{together(schemes, len(table.rows))} {words}" for words, schemes in sharing.items())
    return [f"Break-even batch size: {found}."] if found else []


def together(schemes: list[str], count: int) -> str:
    """Return some of ``count`` schemes in few words."""
    if len(schemes) == count > 3:
        return "all schemes"
    return ", ".join(schemes) if len(schemes) < 7 else f"{', '.join(schemes[:5])} and {len(schemes) - 5} others"


def unequal(table: Table) -> list[str]:
    """Return which schemes gave other tokens than plain decoding, each where it did so most."""
    worst: dict[str, tuple[int, int, int, bool]] = {}
    for scheme, size, sequences, exact, _, _, promised, _ in table.rows:
        if exact < sequences and (scheme not in worst or exact < worst[scheme][0]):
            worst[scheme] = exact, sequences, size, promised
    words = {True: "it promises equality: see specframe verify", False: "it does not promise equality"}
    return [
        f"{scheme} gives other tokens than plain decoding at batch size 1: {exact} of {sequences} sequences are equal "
        f"at batch size {size}; {words[promised]}."
        for scheme, (exact, sequences, size, promised) in worst.items()
    ]


def tails(table: Table) -> list[str]:
    """Return the schemes with the shortest and the longest tail at the largest batch size; of few sequences the medians."""
    largest = max((row[1] for row in table.rows), default=0)
    count = min((row[6] for row in table.rows if row[1] == largest), default=0)
    column, name, why = (4, "P99", "") if count >= ENOUGH_FOR_P99 else (2, "Median", f"; {FEW_FOR_P99}")
    rows = sorted((row for row in table.rows if row[1] == largest), key=lambda row: row[column])
    if len(rows) < 2:
        return []
    (best,), (worst,) = texts([(rows[0][column],), (rows[-1][column],)])
    ends = f"{best} {table.unit} with {rows[0][0]}, {worst} {table.unit} with {rows[-1][0]}"
    return [f"{name} latency of {count} sequences at batch size {largest}: {ends}{why}."]
