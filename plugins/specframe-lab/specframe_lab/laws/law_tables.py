"""Fitted laws as tables of texts, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from specframe.cli.tables import per_second
from specframe_lab.comparison.digits import texts
from specframe_lab.laws import published_laws
from specframe_lab.laws.acceptance_laws import LAYERS, TOKENS, AcceptanceLaw, HeldOut
from specframe_lab.laws.budget_laws import Budgets
from specframe_lab.laws.draft_choice import DraftChoice
from specframe_lab.laws.least_squares import CONFIDENCE, Interval, Law, interval

MISSED = "*"
"""Mark of a residual that the prompts do not explain."""
Table = tuple[str, list[str], list[tuple[str, ...]]]
"""A title, the names of columns, and rows."""
LAW = ["law", "of", "slope", "interval", "constant", "interval", "R2", "largest residual"]
PERCENT = f"{CONFIDENCE:.0%}"


def acceptance_tables(acceptance: AcceptanceLaw) -> list[Table]:
    """Return what was measured of drafts, the laws, what they leave, and what they predict of drafts they have not seen."""
    return [
        (
            f"Mean acceptance length at draft length {acceptance.draft_length}, {acceptance.prompts} prompts, {PERCENT} intervals",
            *by_draft(acceptance, measured_cells(acceptance)),
        ),
        (
            f"Acceptance length = slope · log x + constant, with {PERCENT} intervals",
            LAW,
            texts([*law_rows(acceptance)]),
        ),
        *residual_tables(acceptance),
        *held_out_tables(acceptance),
    ]


def measured_cells(acceptance: AcceptanceLaw) -> list[str]:
    """Return each draft's acceptance length with its interval."""
    bounds = [interval(draws) for draws in acceptance.y_RN.T]
    return [f"{length:.2f} ({within(bound)})" for length, bound in zip(acceptance.y_N.tolist(), bounds, strict=True)]


def by_draft(acceptance: AcceptanceLaw, cells: Sequence[str]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return columns and rows of a table with a row for each number of tokens and a column for each depth."""
    found = {(draft.tokens, draft.layers): cell for draft, cell in zip(acceptance.drafts, cells, strict=True)}
    depths = sorted({layers for _, layers in found})
    rows = [
        (f"{tokens:,}", *(found.get((tokens, depth), "-") for depth in depths))
        for tokens in sorted({tokens for tokens, _ in found})
    ]
    return ["tokens", *(f"{depth} layer{'s' * (depth > 1)}" for depth in depths)], rows


def within(bounds: Interval, decimals: int = 2) -> str:
    """Return an interval as text."""
    return f"{bounds[0]:.{decimals}f} to {bounds[1]:.{decimals}f}"


def law_rows(acceptance: AcceptanceLaw) -> Iterable[tuple[Any, ...]]:
    """Yield a row for each law, and for each published one after those like it."""
    for name, unit, published in ((TOKENS, "layers", published_laws.TOKENS), (LAYERS, "tokens", published_laws.LAYERS)):
        for value, law in acceptance.laws(name).items():
            yield law_row(name, f"{value:,} {unit[:-1] if value == 1 else unit}", law)
        yield f"{name}, published", "", published[0], "-", published[1], "-", None, None
    if barrier := acceptance.barrier:
        yield law_row(TOKENS, "both", barrier)
        yield LAYERS, "both", float(barrier.coefficients_C[1]), within(barrier.intervals[1], 3), None, "-", None, None


def law_row(name: str, of: str, law: Law) -> tuple[Any, ...]:
    """Return the row of a law: its first slope, and its constant."""
    slope, *_, constant = law.coefficients_C.tolist()
    first, *_, last = law.intervals
    largest = float(max(law.residuals_N, key=abs))
    told = law.r2 is not None  # a law through as many points as it has coefficients leaves nothing
    return name, of, slope, within(first, 3), constant, within(last), law.r2, largest if told else None


def residual_tables(acceptance: AcceptanceLaw) -> list[Table]:
    """Return what the law by both quantities leaves of each draft."""
    if not (law := acceptance.barrier):
        return []
    cells = [
        f"{residual:+.2f}{MISSED * miss}" for residual, miss in zip(law.residuals_N.tolist(), law.misses, strict=True)
    ]
    title = f"Measured less the law by both ({MISSED}: more than the prompts explain)"
    return [(title, *by_draft(acceptance, cells))]


def held_out_tables(acceptance: AcceptanceLaw) -> list[Table]:
    """Return a table for each largest quantity that laws were fitted without."""
    found = []
    for name in (TOKENS, LAYERS):
        for words, held in (
            (f"by {name} alone", acceptance.held_out(name, alone=True)),
            ("by both", acceptance.held_out(name)),
        ):
            if held:
                title = f"The most {name} left out of the fit {words}: mean error {mean_error(held):.2f}"
                found.append((title, HELD_OUT, texts([held_row(one) for one in held])))
    return found


HELD_OUT = ["tokens", "layers", "predicted", "measured", "error", "interval", "within"]


def mean_error(held: Sequence[HeldOut]) -> float:
    """Return the mean of the errors' sizes, in tokens."""
    return sum(abs(one.predicted - one.measured) for one in held) / len(held)


def held_row(one: HeldOut) -> tuple[Any, ...]:
    """Return the row of a draft that was left out."""
    (low, high), draft, error = one.error, one.draft, one.predicted - one.measured
    lengths = one.predicted, one.measured, error
    return f"{draft.tokens:,}", str(draft.layers), *lengths, within(one.error), low <= 0 <= high


def budget_tables(budgets: Budgets) -> list[Table]:
    """Return the best draft lengths of a drafter, the law of them, and what it predicts of batch sizes it has not seen."""
    held = {one.best.batch_size: one for one in budgets.held_out}
    rows = []
    for best in budgets.best:
        one = held.get(best.batch_size)
        others = (one.predicted, f"{one.kept:.0%}") if one else (None, "-")
        length = f"{best.draft_length}{' or more' * best.at_edge}"
        plain = best.speeds[best.draft_length] / best.speeds[0] if 0 in best.speeds else None
        rows.append((str(best.batch_size), length, within(best.interval, 0), plain, *others))
    columns = ["batch size", "best K", "interval", "speed-up", "K by the law of the others", "speed kept"]
    found: list[Table] = [(f"Best draft length of {budgets.drafter}, with {PERCENT} intervals", columns, texts(rows))]
    if law := budgets.law:
        slope, constant = published_laws.budget_law()
        published = ("published, nodes of a tree", "", slope, "-", constant, "-", None, None)
        found.append(
            ("log K = slope · log batch size + constant", LAW, texts([law_row("batch size", "", law), published]))
        )
    return found


def choice_table(choices: Sequence[DraftChoice]) -> Table:
    """Return the fastest drafts."""
    columns = ["batch size", "tokens", "best layers", "acceptance length", "best K", "tokens/s", "speed", "interval"]
    rows = [
        (
            str(one.batch_size),
            f"{one.tokens:,}",
            str(one.layers),
            one.acceptance,
            one.draft_length,
            per_second(one.tokens_per_second),
            one.speed,
            within(one.speed_interval),
        )
        for one in choices
    ]
    return "The fastest draft on the device by the law by both", columns, texts(rows)


def record(
    acceptance: AcceptanceLaw | None, budgets: Sequence[Budgets], choices: Sequence[DraftChoice]
) -> dict[str, Any]:
    """Return everything as JSON has it."""
    return {
        "acceptance": acceptance and acceptance_record(acceptance),
        "budgets": [budget_record(one) for one in budgets],
        "choices": [attrs.asdict(one) for one in choices],
        "published": {
            "source": published_laws.SOURCE,
            TOKENS: published_laws.TOKENS,
            LAYERS: published_laws.LAYERS,
            "budgets": published_laws.BUDGETS,
        },
    }


def acceptance_record(acceptance: AcceptanceLaw) -> dict[str, Any]:
    """Return the acceptance of a family as JSON has it."""
    laws = {name: acceptance.laws(name) for name in (TOKENS, LAYERS)}
    barrier = acceptance.barrier
    return {
        "draft_length": acceptance.draft_length,
        "prompts": acceptance.prompts,
        "drafts": [
            {
                "drafter": draft.name,
                TOKENS: draft.tokens,
                LAYERS: draft.layers,
                "length": length,
                "interval": interval(draws),
            }
            for draft, length, draws in zip(acceptance.drafts, acceptance.y_N.tolist(), acceptance.y_RN.T, strict=True)
        ],
        "laws": {
            name: [{"at": value, **law_record(law)} for value, law in found.items()] for name, found in laws.items()
        },
        "barrier": barrier and law_record(barrier),
        "held_out": {
            name: {
                kind: [attrs.asdict(one) for one in acceptance.held_out(name, alone=kind == "alone")]
                for kind in ("alone", "barrier")
            }
            for name in (TOKENS, LAYERS)
        },
    }


def law_record(law: Law) -> dict[str, Any]:
    """Return a law as JSON has it."""
    parts = [*law.names, "constant"]
    return {
        "coefficients": dict(zip(parts, law.coefficients_C.tolist(), strict=True)),
        "intervals": dict(zip(parts, law.intervals, strict=True)),
        "r2": law.r2,
        "residuals": law.residuals_N.tolist(),
        "misses": law.misses,
    }


def budget_record(budgets: Budgets) -> dict[str, Any]:
    """Return the best draft lengths of a drafter as JSON has them."""
    law = budgets.law
    return {
        "drafter": budgets.drafter,
        "best": [attrs.asdict(one, filter=attrs.filters.exclude("draft_lengths_R")) for one in budgets.best],
        "law": law and law_record(law),
        "held_out": [
            {"batch_size": one.best.batch_size, "predicted": one.predicted, "kept": one.kept}
            for one in budgets.held_out
        ],
        "num_speculative_tokens_per_batch_size": budgets.schedule,
    }
