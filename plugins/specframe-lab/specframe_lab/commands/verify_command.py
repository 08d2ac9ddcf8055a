"""``specframe verify``: combinations against the reference decoder."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
from specframe_std.command_options.name_checks import check_names
from specframe_std.command_options.options import names, whole, with_options
from specframe_std.output_file import LockedFile, Output

from specframe.cli.option_types import File
from specframe.cli.tables import show_table
from specframe.errors import CompositionError, OptionError, SpecframeError
from specframe_lab.commands.dry_run_command import DRY_RUN
from specframe_lab.commands.grids import (
    SHOWN,
    TEMPERATURE,
    Remembered,
    grid_options,
    left_out,
    prepare,
    readable,
    sampled,
    tell_left_out,
)
from specframe_lab.commands.lab_option_types import CUT, PROMPTS, Unusable, is_page

if TYPE_CHECKING:
    from specframe_lab.grid import Cell, Grid
    from specframe_lab.verify import Verification

Faults = list[tuple["Cell", SpecframeError]]
"""Cells that cannot be verified, and why."""


@click.command(cls=Remembered)
@with_options(PROMPTS, CUT)
@grid_options(lenient=True, draft_length="5")
@click.option("--check", is_flag=True, help="Check positions, masks and caches in every round as well; slow.")
@TEMPERATURE
@whole("--max-new-tokens", "Tokens compared per prompt at most.", 64)
@DRY_RUN
@with_options(SHOWN)
@click.option(
    *names("--output"),
    metavar="FILE",
    type=File(),
    help="Write each cell's outcome, with all divergences: as lines of JSON, or as a page where the name ends in .html.",
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
    dtype explains it, by the target's logits in float64, and a bug otherwise. With a temperature the reference is
    plain sampling at the same seed, and the acceptance rule has to be gumbel: what other rules draw depends on the draft.
    With --bitwise there are no ties: every divergence is a bug.

    Exits with status 1 when a divergence is a bug or a combination could not be decoded, a name that nothing provides among them.
    """
    from specframe_lab.verify import Verification
    from specframe_lab.verify import verify as verifications

    texts = readable(prompt, prompts, limit)
    outcomes: list[Verification] = []
    faults: Faults = []
    cells = named_cells(sampled(options, temperature), faults)
    if dry_run:
        foresee(cells, faults, len(texts), max_new_tokens, temperature)
        ctx.exit(1 if faults else 0)
    prepare(quiet, verbose, {cell["device"] for cell in cells})
    page = page_file(output)
    with lines(None if page else output) as write, telling(quiet) as progress:
        grid = comparable_grid(cells, faults, temperature)
        sound = verifications(grid, texts, max_new_tokens, max_prompt_tokens, progress, temperature)
        unsound = (Verification(cell, len(texts), fault=str(fault)) for cell, fault in faults)
        for outcome in itertools.chain(sound, unsound):
            write(json.dumps(outcome.record(), ensure_ascii=False))
            outcomes.append(outcome)
    show(outcomes, quiet)
    if page:
        settings = {
            "prompts": len(texts),
            "max new tokens": max_new_tokens,
            "max prompt tokens": max_prompt_tokens,
            "temperature": temperature,
        }
        write_page(page, outcomes, grid, ctx.meta["specframe.command"], settings)
        click.echo(page.name)
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
    from specframe_lab.report.verification import named
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


def page_file(output: str | None) -> Output | None:
    """Return the page to write, if one is asked for; raise :class:`OptionError` where it cannot be written."""
    if output is None or not is_page(output):
        return None
    page = Output(output)
    page.refuse_foreign()
    return page


def write_page(page: Output, outcomes: list[Verification], grid: Grid, command: str, settings: dict[str, Any]) -> None:
    """Write the page: all outcomes, and how they were come by."""
    from specframe_std.run_command.environment import environment

    from specframe.models.pairs import choose, chosen_name
    from specframe_lab.grid import varying
    from specframe_lab.report.verification import html

    cell, differing = grid.cells[0], varying(outcome.cell for outcome in outcomes)
    target, strategy, draft_model = choose(cell["target"], cell["drafter"])
    pair = {"target": target, "drafter": chosen_name(cell["drafter"], strategy, draft_model)}
    known = {name: value for name, value in pair.items() if name not in differing}
    known |= settings | environment({cell["device"] for cell in grid.cells})
    known["written"] = time.strftime("%Y-%m-%d %H:%M:%S %z")
    facts = [(name, "no" if value is None else str(value)) for name, value in known.items()]
    page.refuse_foreign()
    page.replace(html(outcomes, command, facts, left_out(grid)))


@contextlib.contextmanager
def lines(output: str | None) -> Iterator[Callable[[str], None]]:
    """Start the file of outcomes and return what writes a line at once; nothing is written without a file."""
    if output is None:
        yield lambda line: None
        return
    file = LockedFile(output)
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
    from specframe_lab.report.verification import FIGURES, acceptance, differing, figures, named, reason

    options = differing(outcomes)
    if not quiet:
        rows = [[named(outcome.cell, options, " "), *figures(outcome)] for outcome in outcomes]
        show_table(("combination", *FIGURES), rows, numbers=True)
        click.echo()
    for outcome in outcomes:
        if why := reason(outcome):
            click.echo(f"{named(outcome.cell, options)}: {why}")
    click.echo(acceptance(outcomes))
