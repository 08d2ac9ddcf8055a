"""``specframe verify``: combinations against the reference decoder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.name_checks import check_names
from specframe.cli.option_types import File
from specframe.cli.options import CUT, PROMPTS, names, whole, with_options
from specframe.cli.tables import show_table
from specframe.errors import CompositionError, OptionError, SpecframeError
from specframe.files import Output
from specframe.text.prompts import Given
from specframe_lab.commands.display import SHOWN, prepare
from specframe_lab.commands.dry_run import DRY_RUN
from specframe_lab.commands.grids import TEMPERATURE, grid_options, readable, sampled
from specframe_lab.commands.leaving_out import tell_left_out
from specframe_lab.commands.option_types import Unusable

if TYPE_CHECKING:
    from specframe_lab.grid import Cell, Grid
    from specframe_lab.verify import Agreement, Verification

Faults = list[tuple["Cell", SpecframeError]]
"""Cells that cannot be verified, and why."""
COLUMNS = ("exact %", "partial %", "ties", "bugs", "same batch: exact %", "partial %", "plain: exact %")


@click.command()
@with_options(PROMPTS, CUT)
@grid_options(lenient=True, draft_length="5")
@click.option("--check", is_flag=True, help="Check positions, masks and caches in every round as well; slow.")
@TEMPERATURE
@whole("--max-new-tokens", "Tokens compared per prompt at most.", 64)
@DRY_RUN
@with_options(SHOWN)
@click.option(
    *names("--output"),
    metavar="FILE.jsonl",
    type=File(),
    help="Write each cell's outcome, with all divergences, to a file.",
)
@click.pass_context
def verify(
    ctx: click.Context,
    prompt: tuple[str, ...],
    prompts: str | None,
    limit: int | None,
    max_prompt_tokens: int | None,
    temperature: float,
    max_new_tokens: int,
    output: str | None,
    dry_run: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Compare combinations with the reference decoder, token for token.

    Where options have several values, all combinations are verified. A divergence is a tie when rounding in the model's
    dtype explains it, judged by the target's logits in float64, and a bug otherwise. With a temperature the reference is
    plain sampling at the same seed, and the acceptance rule has to be gumbel: what other rules draw depends on the draft.
    With --bitwise there are no ties: every divergence is a bug.

    Exits with status 1 when a divergence is a bug or a combination could not be decoded, a name that nothing provides among them.
    """
    texts = readable(prompt, prompts, limit)
    outcomes: list[Verification] = []
    faults: Faults = []
    cells = named_cells(sampled(options, temperature), faults)
    if dry_run:
        foresee(cells, faults, len(texts), max_new_tokens, temperature)
        ctx.exit(1 if faults else 0)
    prepare(quiet, verbose, {cell["device"] for cell in cells})
    with lines(output) as write, telling(quiet) as progress:
        for outcome in run(cells, faults, texts, max_new_tokens, max_prompt_tokens, progress, temperature):
            write(json.dumps(outcome.record(), ensure_ascii=False))
            outcomes.append(outcome)
    show(outcomes, quiet)
    if not all(outcome.sound for outcome in outcomes):
        ctx.exit(1)


def named_cells(options: dict[str, Any], faults: Faults) -> list[Cell]:
    """Return the cells whose names are all known; the others go to ``faults``.

    Raises:
        SpecframeError: there is no other cell.
    """
    from specframe_lab.grid import expand

    cells = []
    for cell in expand(options):
        try:
            if unusable := next((value for value in cell.values() if isinstance(value, Unusable)), None):
                raise unusable.fault
            check_names(cell)
        except CompositionError:
            cells.append(cell)  # the check of the grid leaves it out
        except SpecframeError as fault:
            faults.append((cell, fault))
        else:
            cells.append(cell)
    if not cells:
        raise faults[0][1]
    return cells


def comparable_grid(cells: list[Cell], faults: Faults, temperature: float) -> Grid:
    """Return the cells that can be verified, after saying which are left out; those with a fault go to ``faults``."""
    from specframe_lab.grid import checked
    from specframe_lab.verify import check_comparable

    grid = checked(cells, faults)
    tell_left_out(grid)
    for cell in list(grid.cells) if temperature else ():
        try:
            check_comparable([cell])
        except SpecframeError as fault:
            grid.cells.remove(cell)
            faults.append((cell, fault))
    if not grid.cells:
        raise faults[-1][1]
    return grid


def foresee(cells: list[Cell], faults: Faults, prompts: int, new: int, temperature: float) -> None:
    """Show what would be decoded."""
    from specframe_lab.grid import varying
    from specframe_lab.verify import decodings

    grid = comparable_grid(cells, faults, temperature)
    differing = varying([*grid.cells, *(cell for cell, _ in faults)]) or ["align"]
    for cell, fault in faults:
        click.echo(f"{named(cell, differing)}: {fault}", err=True)
    show_table(
        ("combination", "batch"), [(named(cell, differing, " "), str(cell["batch_size"])) for cell in grid.cells]
    )
    runs = decodings(grid.cells, temperature)
    click.echo(
        f"\n{len(grid.cells)} combinations to verify: {prompts} prompts decoded {runs} times, by the references and by the "
        f"combinations, at most {prompts * runs * new:,} new tokens; no estimate of the time: nothing is measured"
    )


def run(
    cells: list[Cell],
    faults: Faults,
    texts: Sequence[Given],
    new: int,
    cut: int | None,
    progress: Any,
    temperature: float,
) -> Iterator[Verification]:
    """Check the grid, then yield each cell's outcome, at last those of cells with a fault."""
    from specframe_lab.verify import Verification
    from specframe_lab.verify import verify as verifications

    grid = comparable_grid(cells, faults, temperature)
    yield from verifications(grid, texts, new, cut, progress, temperature)
    for cell, fault in faults:
        yield Verification(cell, len(texts), fault=str(fault))


@contextlib.contextmanager
def lines(output: str | None) -> Iterator[Callable[[str], None]]:
    """Start the file of outcomes and return what writes a line at once; nothing is written without a file."""
    if output is None:
        yield lambda line: None
        return
    file = Output(output)
    with file.locked():
        if held := file.holds():
            content = "results" if held.startswith(b'{"cell": ') else "something else"
            raise OptionError(f"--output: {output} holds {content} already: name another file")
        file.replace("")
        yield file.append


@contextlib.contextmanager
def telling(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Say on standard error, where that is a terminal, what is being decoded; with ``quiet`` nothing."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda doing: None
        return
    with console.status("loading models") as status:
        yield status.update


def show(outcomes: list[Verification], quiet: bool) -> None:
    """Print a row per cell, unless ``quiet``, then where each parts from the reference decoder."""
    from specframe_lab.grid import varying

    differing = varying(outcome.cell for outcome in outcomes) or ["align"]
    if not quiet:
        rows = [[named(outcome.cell, differing, " "), *row(outcome)] for outcome in outcomes]
        show_table(("combination", *COLUMNS), rows, numbers=True)
        click.echo()
    for outcome in outcomes:
        if reason := outcome.fault or (outcome.batch_one and outcome.batch_one.worst):
            click.echo(f"{named(outcome.cell, differing)}: {reason}")
    sound = sum(outcome.sound for outcome in outcomes)
    aside = "" if all(outcome.cell.get("bitwise") for outcome in outcomes) else ", ties aside"
    click.echo(f"{sound} of {len(outcomes)} combinations decode as the reference decoder does{aside}")


def row(outcome: Verification) -> list[str]:
    """Return the figures of one cell."""
    if outcome.batch_one is None or outcome.same_batch is None or outcome.plain is None:
        return ["failed", *["-"] * (len(COLUMNS) - 1)]
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


def named(cell: Cell, options: list[str], joint: str = ", ") -> str:
    """Return some of a cell's options as text; those left to their default stay out."""
    return joint.join(
        f"{option.replace('_', '-')}={cell[option]}" for option in options if cell.get(option) is not None
    )
