"""``specframe verify``: combinations against the reference decoder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.grids import grid_options
from specframe.cli.options import WholeNumber
from specframe.cli.run import gather
from specframe.cli.tables import show_table
from specframe.errors import OptionError

if TYPE_CHECKING:
    from specframe.grid import Cell
    from specframe.verify import Agreement, Verification

COLUMNS = ("exact %", "partial %", "ties", "bugs", "same batch: exact %", "partial %", "plain: exact %")


@click.command()
@click.argument("prompt", nargs=-1)
@click.option(
    "--prompts",
    metavar="FILE",
    help="Prompts from a file, - for standard input: one per line, or JSON lines with prompt, text or turns.",
)
@click.option("--limit", metavar="N", type=WholeNumber(1), help="Only the first N prompts.")
@click.option("--max-prompt-tokens", metavar="N", type=WholeNumber(1), help="Cut prompts to their first N tokens.")
@grid_options
@click.option("--check", is_flag=True, help="Check positions, masks and caches in every round as well; slow.")
@click.option(
    "--max-new-tokens",
    metavar="N",
    type=WholeNumber(1),
    default=64,
    show_default=True,
    help="Tokens compared per prompt, unless it stops before.",
)
@click.option("--output", metavar="FILE.jsonl", help="Write each cell's outcome, with all divergences, to a file.")
@click.pass_context
def verify(
    ctx: click.Context,
    prompt: tuple[str, ...],
    prompts: str | None,
    limit: int | None,
    max_prompt_tokens: int | None,
    max_new_tokens: int,
    output: str | None,
    **options: Any,
) -> None:
    """Compare combinations with the reference decoder, token for token.

    Where options have several values, all combinations are verified. A divergence is a tie when rounding in the model's
    dtype explains it, judged by the target's logits in float64, and a bug otherwise.

    Exits with status 1 when a divergence is a bug or a combination could not be decoded.
    """
    texts = readable(gather(prompt, prompts))[:limit]
    outcomes: list[Verification] = []
    with lines(output) as write, telling() as progress:
        for outcome in run(options, texts, max_new_tokens, max_prompt_tokens, progress):
            write(json.dumps(outcome.record(), ensure_ascii=False))
            outcomes.append(outcome)
    show(outcomes)
    if not all(outcome.sound for outcome in outcomes):
        ctx.exit(1)


def readable(asked: list[Any]) -> list[str]:
    """Return the prompts' texts; raise :class:`OptionError` for one that cannot be read."""
    if fault := next((one.fault for one in asked if one.fault), None):
        raise OptionError(f"prompts: {fault}")
    return [one.text for one in asked]


def run(options: dict[str, Any], texts: list[str], new: int, cut: int | None, progress: Any) -> Iterator[Verification]:
    """Check the grid, then yield each cell's outcome."""
    import transformers

    from specframe.grid import checked, expand, varying
    from specframe.verify import verify as verifications

    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()  # it warns of pad ids in prompts, which are tokens like others here
    cells = expand(options)
    grid = checked(cells)
    for cell, why in grid.refused:
        click.echo(f"left out: {named(cell, varying(cells))}: {why}", err=True)
    yield from verifications(grid, texts, new, cut, progress)


@contextlib.contextmanager
def lines(output: str | None) -> Iterator[Callable[[str], None]]:
    """Open the file of outcomes and return what writes a line, flushed at once; nothing is written without a file."""
    if output is None:
        yield lambda line: None
        return
    path = Path(output)
    if path.exists() and path.stat().st_size:
        raise OptionError(f"--output: {output} holds results already: name another file")
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--output: {output} cannot be written: {error.strerror}") from error
    with file:
        yield lambda line: print(line, file=file, flush=True)


@contextlib.contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Say on standard error, where that is a terminal, what is being decoded."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda doing: None
        return
    with console.status("loading models") as status:
        yield status.update


def show(outcomes: list[Verification]) -> None:
    """Print a row per cell, then where each parts from the reference decoder."""
    from specframe.grid import varying

    differing = varying(outcome.cell for outcome in outcomes) or ["align"]
    rows = [[named(outcome.cell, differing, " "), *row(outcome)] for outcome in outcomes]
    show_table(("combination", *COLUMNS), rows, numbers=True)
    click.echo()
    for outcome in outcomes:
        if reason := outcome.fault or (outcome.batch_one and outcome.batch_one.worst):
            click.echo(f"{named(outcome.cell, differing)}: {reason}")
    sound = sum(outcome.sound for outcome in outcomes)
    click.echo(f"{sound} of {len(outcomes)} combinations decode as the reference decoder does, ties aside")


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
