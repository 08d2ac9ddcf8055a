"""``specframe trace``: a page that steps through a small batch, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from specframe_std.command_options.name_checks import check_names
from specframe_std.command_options.options import LIMIT, names, whole, with_options
from specframe_std.output_file import Output
from specframe_testing.instrumentation.invariant_error import InvariantError

from specframe.errors import OptionError, PluginError, SpecframeError
from specframe.text.prompts.prompt import Given
from specframe_lab.commands.grids import SHOWN, Remembered, grid_options, prepare, readable, tell_left_out
from specframe_lab.commands.lab_option_types import PROMPTS, PageFile

if TYPE_CHECKING:
    from specframe_lab.grid import Cell
    from specframe_lab.grid_models import LoadedModels
    from specframe_lab.trace.frames import SchemeTrace

MOST_PROMPTS = 16
"""More than that nobody looks at."""


@click.command(cls=Remembered)
@with_options(PROMPTS, [LIMIT])
@grid_options(align="ragged,eqspec", batch_size="3", draft_length="4")
@whole("--max-new-tokens", "Tokens generated per prompt at most.", 24)
@click.option(
    *names("--output"),
    metavar="FILE.html",
    type=PageFile(),
    default="trace.html",
    show_default=True,
    help="The page to write.",
)
@with_options(SHOWN)
@click.pass_context
def trace(
    ctx: click.Context,
    prompt: tuple[str, ...],
    prompts: str | None,
    limit: int | None,
    max_new_tokens: int,
    output: str,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Show what happens in the KV cache: a page that steps through the rounds of one small batch.

    Where options have several values, the page shows all combinations next to each other, on the same prompts. It needs
    no network. Without prompts, some starts of Python code are decoded, one batch of them.

    Exits with status 1 when a combination could not be recorded; the page shows the others.
    """
    check_names(options)
    texts = readable(prompt, prompts, limit)
    if not prompt and prompts is None and limit is None:
        texts = texts[: max(map(int, options["batch_size"]))]
    if len(texts) > MOST_PROMPTS:
        raise OptionError(
            f"prompts: expected at most {MOST_PROMPTS}, for a page that can be looked at, got {len(texts)}"
        )
    cells = traced_cells(options)
    page = Output(output)
    page.refuse_foreign()
    prepare(quiet, verbose, {cell["device"] for cell in cells})
    schemes = write_page(cells, texts, max_new_tokens, page, ctx.meta["specframe.command"])
    if not quiet:
        show(schemes)
    click.echo(page.name)
    if len(schemes) < len(cells):
        ctx.exit(1)


def traced_cells(options: dict[str, Any]) -> list[Cell]:
    """Return the combinations to trace; those whose strategies do not fit each other are named and left out."""
    from specframe.models.pairs import choose
    from specframe_lab.grid import checked, expand

    grid = checked(expand(options))
    tell_left_out(grid)
    targets = {str(choose(cell["target"], cell["drafter"])[0]) for cell in grid.cells}
    if len(targets) > 1:
        raise OptionError(f"--target: expected one target for all schemes, got {', '.join(sorted(targets))}")
    return grid.cells


def scheme_name(cell: Cell, differing: list[str]) -> str:
    """Return the distinguishing options of a combination: the alignment, or the options that differ."""
    if set(differing) <= {"align"}:
        return str(cell["align"])
    return ", ".join(f"{option.replace('_', ' ')} {cell[option] or 'default'}" for option in differing)


def write_page(cells: list[Cell], texts: Sequence[Given], new: int, output: Output, command: str) -> list[SchemeTrace]:
    """Record every combination, write the page, and return those that are on it."""
    from specframe_lab.grid import varying
    from specframe_lab.grid_models import LoadedModels
    from specframe_lab.trace.trace_page import render, token_text

    loaded, differing = LoadedModels(), varying(cells)
    schemes, cell = recorded(cells, differing, texts, new, loaded)
    told = facts(cell, loaded, differing, new, command, schemes)
    page = render(schemes, told, token_text(loaded.pipeline(cell).tokenizer))
    output.refuse_foreign()
    output.replace(page)
    return schemes


def recorded(
    cells: list[Cell], differing: list[str], texts: Sequence[Given], new: int, loaded: LoadedModels
) -> tuple[list[SchemeTrace], Cell]:
    """Return the recorded traces and the first recorded combination; name failed combinations on standard error.

    Raises:
        SpecframeError: nothing could be recorded, or what no combination can do, as decoding a prompt that is too long.
    """
    from specframe_lab.trace.trace_recorder import record

    schemes: dict[int, SchemeTrace] = {}
    faults: list[SpecframeError] = []
    for place, cell in enumerate(cells):
        name = scheme_name(cell, differing)
        try:
            schemes[place] = record(
                texts, new, make=lambda observers, **cell: loaded.pipeline(cell, observers), name=name, **cell
            )
        except (PluginError, InvariantError) as fault:
            faults.append(fault)
            click.echo(f"left out: {name}: {fault}", err=True)
    if not schemes:
        raise faults[0]
    return list(schemes.values()), cells[min(schemes)]


def facts(
    cell: Cell, loaded: LoadedModels, differing: list[str], new: int, command: str, schemes: list[SchemeTrace]
) -> dict[str, str]:
    """Return the page's description of the run."""
    from specframe.models.pairs import choose, chosen_name

    target, strategy, draft_model = choose(cell["target"], cell["drafter"])
    model = loaded.target(cell)
    known = {
        "target": target,
        "drafter": chosen_name(cell["drafter"], strategy, draft_model),
        "batch_size": cell["batch_size"],
        "draft_length": cell["draft_length"],
    }
    same = {option.replace("_", " "): str(value) for option, value in known.items() if option not in differing}
    trees = {scheme.tree for scheme in schemes}
    if trees != {""}:  # of a tree it is the depth: the panels of trees show their nodes and depth
        length = same.pop("draft length", None)
        same |= {"draft trees": trees.pop()} if len(trees) == 1 else {}
        same |= {"draft length of chains": length} if "" in trees and length else {}
    precision = f"{str(model.dtype).removeprefix('torch.')} on {model.device}"
    return {**same, "new tokens": f"{new} at most", "precision": precision, "command": command}


def show(schemes: list[SchemeTrace]) -> None:
    """Print one line per scheme."""
    from specframe.cli.tables import show_table
    from specframe_lab.trace.trace_page import totals
    from specframe_lab.trace.tree_drawing import by_branch

    rows = [totals(scheme) for scheme in schemes]
    show_table(("scheme", "passes", "slots moved", "bytes moved", "target's own text"), rows, numbers=True)
    for scheme in schemes:
        if scheme.branches:
            click.echo(f"{scheme.name}: accepted nodes: {by_branch(scheme.branches)}")
