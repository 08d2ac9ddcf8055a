"""What combinations were verified to be: as rows, in a sentence, and as one page that needs nothing but itself."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Sequence
from html import escape

from specframe_lab.comparison.digits import texts
from specframe_lab.grid import Cell, varying
from specframe_lab.report.markup import described, left_out, part, row, scrolling
from specframe_lab.verify import Agreement, Divergence, Verification

FIGURES = ("exact %", "partial %", "ties", "bugs", "same batch: exact %", "same batch: partial %", "plain: exact %")
"""The columns of the figures of a combination."""
COLUMNS = ("combination", "tokens", "first divergence", *FIGURES)
DIVERGENCE = (
    *("prompt", "agreeing tokens", "expected", "got"),
    *("gap of the best two", "short of the best", "bound", "kind"),
)
TOLD = ("target", "drafter", "device")
"""Options that the facts of a page show, by the names of what was chosen."""
END = "the end"
"""Text in place of a token where a continuation has ended."""


def named(cell: Cell, options: Sequence[str], barrier: str = ", ") -> str:
    """Return some of a cell's options as text; those left to their default stay out."""
    return barrier.join(
        f"{option.replace('_', '-')}={cell[option]}" for option in options if cell.get(option) is not None
    )


def differing(outcomes: Iterable[Verification]) -> list[str]:
    """Return the options that distinguish combinations, or the alignment if there is one combination."""
    return varying(outcome.cell for outcome in outcomes) or ["align"]


def figures(outcome: Verification) -> list[str]:
    """Return the figures of one combination."""
    if outcome.batch_one is None or outcome.same_batch is None or outcome.plain is None:
        return ["failed", *["-"] * (len(FIGURES) - 1)]
    one: Agreement = outcome.batch_one
    return [
        f"{one.exact_match:.1f}",
        f"{one.partial_match:.1f}",
        str(one.ties),
        str(one.bugs),
        f"{outcome.same_batch.exact_match:.1f}",
        f"{outcome.same_batch.partial_match:.1f}",
        f"{outcome.plain.exact_match:.1f}",
    ]


def reason(outcome: Verification) -> str:
    """Return why a combination could not be decoded or where it parts from the reference decoder; "" where it does not."""
    return outcome.fault or str((outcome.batch_one and outcome.batch_one.worst) or "")


def acceptance(outcomes: Sequence[Verification]) -> str:
    """Return how many combinations decode as the reference decoder does."""
    sound = sum(outcome.sound for outcome in outcomes)
    aside = "" if all(outcome.cell.get("bitwise") for outcome in outcomes) else ", ties aside"
    return f"{sound} of {len(outcomes)} combinations decode as the reference decoder does{aside}"


def html(outcomes: Sequence[Verification], command: str, facts: Sequence[tuple[str, str]], left: Sequence[str]) -> str:
    """Return the page of all outcomes; ``facts`` are of settings and environment, ``left`` tells what was left out."""
    options = differing(outcomes)
    rows = [row(cells(outcome, options)) for outcome in outcomes]
    return string.Template(part("verification.html")).substitute(
        style=part("page.css"),
        headline=escape(f"{acceptance(outcomes)}."),
        combinations=scrolling("Every combination", COLUMNS, rows),
        hint=f"its last columns are {FIGURES[-2]} and {FIGURES[-1]}",
        refused=left_out(left),
        divergences=divergences(outcomes, options),
        command=escape(command),
        about=described([*facts, *shared(outcomes, options)]),
    )


def cells(outcome: Verification, options: Sequence[str]) -> list[str]:
    """Return the markup of a combination's cells."""
    word, right = outcome_word(outcome)
    marked = word if right else f'<span class="differs">{word}</span>'
    why = reason(outcome)
    told = f'<span class="words">{escape(why)}</span>' if why else "none"
    return [escape(named(outcome.cell, options)), marked, told, *figures(outcome)]


def outcome_word(outcome: Verification) -> tuple[str, bool]:
    """Return the outcome of a combination in a word or two, and whether it is as it should be."""
    if outcome.batch_one is None:
        return "failed", False
    if not outcome.batch_one.divergences:
        return "exact", True
    return ("differ", False) if outcome.batch_one.bugs else ("exact but for ties", True)


def divergences(outcomes: Sequence[Verification], options: Sequence[str]) -> str:
    """Return the section with a table of all divergences from the reference decoder for each combination that has some."""
    found = [(named(one.cell, options), one.batch_one.divergences) for one in outcomes if one.batch_one]
    tables = [divergence_table(name, parted) for name, parted in found if parted]
    if not tables:
        return ""
    heading = '<h2 id="divergences">All divergences</h2>'
    return f'<section aria-labelledby="divergences">\n{heading}\n{"".join(tables)}\n</section>'


def divergence_table(name: str, parted: Sequence[Divergence]) -> str:
    """Return a combination's divergences as a table that unfolds."""
    numbers = [
        (
            *(str(one.index), str(one.position)),
            *(END if token is None else str(token) for token in (one.expected, one.got)),
            *(None if math.isinf(value) else value for value in (one.gap, one.short, one.bound)),
            one.kind,
        )
        for one in parted
    ]
    table = scrolling(f"Divergences of {name}", DIVERGENCE, [row(map(escape, cells)) for cells in texts(numbers)])
    return f"<details><summary>{escape(name)}: {len(parted)}</summary>{table}</details>"


def shared(outcomes: Sequence[Verification], options: Sequence[str]) -> list[tuple[str, str]]:
    """Return the options that all combinations have in common, but for those that were left to their default."""
    cell = outcomes[0].cell
    return [
        (option.replace("_", " "), str(value)[:80])
        for option, value in cell.items()
        if option not in (*options, *TOLD) and value is not None and value is not False and value != "auto"
    ]
