"""``specframe trace``: a page that steps through a small batch, round by round."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.grids import Remembered, grid_options, hush, readable
from specframe.cli.options import PROMPTS, names, whole, with_options
from specframe.errors import OptionError
from specframe.files import Output

if TYPE_CHECKING:
    from specframe.frames import SchemeTrace
    from specframe.grid import Cell
    from specframe.loading import LoadedModels

MOST_PROMPTS = 16
"""More than that nobody looks at."""


@click.command(cls=Remembered)
@with_options(PROMPTS)
@grid_options(align="ragged,eqspec", batch_size="3", draft_length="4")
@whole("--max-new-tokens", "Tokens generated per prompt, unless it stops before.", 24)
@click.option(
    *names("--output"), metavar="FILE.html", default="trace.html", show_default=True, help="The page to write."
)
@click.pass_context
def trace(
    ctx: click.Context, prompt: tuple[str, ...], prompts: str | None, max_new_tokens: int, output: str, **options: Any
) -> None:
    """Show what happens in the KV cache: a page that steps through the rounds of one small batch.

    Where options have several values, the page shows all combinations beside each other, on the same prompts. It needs
    no network. Without prompts, some starts of Python code are decoded, one batch of them.
    """
    texts = readable(prompt, prompts)
    if not prompt and prompts is None:
        texts = texts[: max(map(int, options["batch_size"]))]
    if len(texts) > MOST_PROMPTS:
        raise OptionError(
            f"prompts: expected at most {MOST_PROMPTS}, for a page that can be looked at, got {len(texts)}"
        )
    cells = traced_cells(options)
    page = Output(output)
    page.refuse_foreign()
    command = shlex.join(["specframe", "trace", *ctx.meta["specframe.arguments"]])
    write_page(cells, texts, max_new_tokens, page, command)


def traced_cells(options: dict[str, Any]) -> list[Cell]:
    """Return the combinations to trace; those whose strategies do not fit each other are named and left out."""
    from specframe.grid import checked, expand, varying
    from specframe.pipeline import choose

    grid = checked(expand(options))
    for cell, why in grid.refused:
        click.echo(f"left out: {scheme_name(cell, varying([*grid.cells, cell]))}: {why}", err=True)
    targets = {str(choose(cell["target"], cell["drafter"])[0]) for cell in grid.cells}
    if len(targets) > 1:
        raise OptionError(f"--target: expected one target for all schemes, got {', '.join(sorted(targets))}")
    return grid.cells


def scheme_name(cell: Cell, differing: list[str]) -> str:
    """Return what tells one combination from the others: the alignment, or the options that differ."""
    if set(differing) <= {"align"}:
        return str(cell["align"])
    return ", ".join(f"{option.replace('_', ' ')} {cell[option] or 'default'}" for option in differing)


def write_page(cells: list[Cell], texts: list[str], new: int, output: Output, command: str) -> None:
    """Record every combination, write the page, and say what moved."""
    from specframe.grid import varying
    from specframe.loading import LoadedModels
    from specframe.report.trace_page import render, token_text
    from specframe.trace import record

    hush()
    loaded, differing = LoadedModels(), varying(cells)

    def make(observers: Any, **cell: Any) -> Any:
        return loaded.pipeline(cell, observers)

    schemes = [record(texts, new, make=make, name=scheme_name(cell, differing), **cell) for cell in cells]
    page = render(
        schemes, facts(cells[0], loaded, differing, new, command), token_text(loaded.pipeline(cells[0]).tokenizer)
    )
    output.refuse_foreign()
    output.replace(page)
    show(schemes)
    click.echo(output.name)


def facts(cell: Cell, loaded: LoadedModels, differing: list[str], new: int, command: str) -> dict[str, str]:
    """Return what the page says of the run."""
    from specframe.pipeline import choose

    target, strategy, draft_model = choose(cell["target"], cell["drafter"])
    model = loaded.target(cell)
    known = {
        "target": target,
        "drafter": draft_model or strategy,
        "batch_size": cell["batch_size"],
        "draft_length": cell["draft_length"],
    }
    same = {option.replace("_", " "): str(value) for option, value in known.items() if option not in differing}
    precision = f"{str(model.dtype).removeprefix('torch.')} on {model.device}"
    return {**same, "new tokens": f"{new} at most", "precision": precision, "command": command}


def show(schemes: list[SchemeTrace]) -> None:
    """Print one line per scheme."""
    from specframe.cli.tables import show_table
    from specframe.report.trace_captions import bytes_text

    rows = []
    for scheme in schemes:
        moved = sum(frame.shifted + frame.carried for frame in scheme.frames)
        passes = sum(frame.phase != "settle" for frame in scheme.frames)
        equal = sum(got == own for got, own in zip(scheme.outputs, scheme.reference or [], strict=False))
        own = f"{equal} of {len(scheme.outputs)}" if scheme.reference else "-"
        rows.append((scheme.name, str(passes), str(moved), bytes_text(moved * scheme.slot_bytes), own))
    show_table(("scheme", "passes", "slots moved", "bytes moved", "target's own text"), rows, numbers=True)
