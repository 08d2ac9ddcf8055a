"""``specframe compare``: a grid of schemes under equal conditions, and a report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from specframe_std.command_options.name_checks import check_names
from specframe_std.command_options.options import choice_option, refuse_idle, whole, with_options
from specframe_std.output_folders import claim_folder
from specframe_std.run_command.run import gather

from specframe.cli.option_types import OneOf
from specframe.cli.tables import per_second
from specframe.errors import OptionError
from specframe.value_checks import LARGEST_SEED
from specframe_lab.commands.dry_run_command import DRY_RUN, show_forecast
from specframe_lab.commands.grids import (
    SHOWN,
    TEMPERATURE,
    Remembered,
    category,
    checked_prompts,
    folder,
    grid_options,
    prepare,
    sampled,
    tell_left_out,
)
from specframe_lab.commands.lab_option_types import CUT, PROMPTS, Arrivals, Slo

if TYPE_CHECKING:
    from specframe_lab.comparison.compare import ComparisonSettings, Progress
    from specframe_lab.comparison.comparison_figures import Table
    from specframe_lab.comparison.comparison_results import Comparison
    from specframe_lab.grid import Grid


SHARED = (
    *("max_prompt_tokens", "temperature", "max_new_tokens", "repeats", "warm_up"),
    *("max_concurrency", "clock", "transformers", "sort"),
)
"""Options that all cells share, as :class:`specframe_lab.comparison.compare.ComparisonSettings` takes them."""


@click.command(cls=Remembered)
@with_options(PROMPTS, CUT)
@grid_options(align="ragged,eqspec,exspec", batch_size="1,4,8", draft_length="5")
@TEMPERATURE
@whole("--max-new-tokens", "Tokens generated per prompt at most.", 64)
@whole("--repeats", "Times each cell is run.", 3)
@whole("--warm-up", "Short runs before each run that counts.", 1, least=0)
@click.option(
    "--arrivals",
    metavar="PATTERN:RATE|FILE",
    type=Arrivals(),
    help="When prompts arrive: RATE per second, in pattern poisson, constant or gamma (with burstiness=X), all also with "
    "ramp-up-strategy=linear or exponential and ramp-up-end-rps=RATE; or as a file of seconds or a Mooncake trace says.",
)
@whole("--arrival-seed", "Of the arrivals.", 0, least=0, most=LARGEST_SEED)
@whole("--max-concurrency", "Most requests in flight: a prompt that arrives meanwhile waits to be sent.")
@click.option(
    "--slo",
    metavar="FIGURE:MS,...",
    type=Slo(),
    help="Objectives, as in ttft:200,tpot:50,e2el:3000: goodput counts the requests per second that keep all.",
)
@choice_option(
    "--clock",
    "C",
    OneOf("wall", "passes"),
    "What times requests: wall, or passes, on which a pass of the target takes one second.",
    "wall",
)
@click.option(
    "--each-at-its-best",
    is_flag=True,
    help="Give each alignment the scheduler and the KV backend that it asks for, in place of ones that all can use.",
)
@click.option(
    "--transformers",
    is_flag=True,
    help="Time plain decoding by generate of transformers, too, at each batch size.",
)
@click.option("--sort", is_flag=True, help="Schedule short prompts first.")
@folder("comparison", "Where results and report go; what it holds of this comparison already is not run again.")
@DRY_RUN
@with_options(SHOWN)
@click.option("--pdf", is_flag=True, help="Write the report as report.pdf as well.")
@click.pass_context
def compare(
    ctx: click.Context,
    prompt: tuple[str, ...],
    prompts: str | None,
    limit: int | None,
    output: str,
    arrivals: str | None,
    arrival_seed: int,
    slo: str | None,
    each_at_its_best: bool,
    pdf: bool,
    dry_run: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Compare schemes: every combination of the values given, and plain decoding at each batch size.

    Cells are run in turns, each several times. The folder then holds results.jsonl (a line per run), report.html (one
    page that needs no network) and figures/ (the page's figures as PNG, SVG and CSV). A comparison that was
    interrupted goes on when the same command is given again. With --bitwise every scheme, plain decoding too, is run twice:
    as it is, and bitwise.

    Exits with status 1 when a cell could not be run.
    """
    shared = {name: options.pop(name) for name in SHARED}
    check_names(options)
    refuse_idle(ctx, "arrival_seed", "arrivals", "all prompts are there from the start")
    beside = [name for name in ("temperature", "arrivals", "max_concurrency") if ctx.params[name]]
    if shared["transformers"] and beside:
        option = beside[0].replace("_", "-")
        raise OptionError(f"--transformers: expected no --{option} with it, since generate has none")
    from specframe_lab.arrival_times import arrival_times
    from specframe_lab.comparison.compare import ComparisonSettings, able_to_sample
    from specframe_lab.comparison.compare import compare as run
    from specframe_lab.comparison.comparison_results import RESULTS
    from specframe_lab.comparison.comparison_tables import tables
    from specframe_lab.comparison.shared_parts import with_shared_parts
    from specframe_lab.grid import checked, expand
    from specframe_lab.report.pdf import PDF, write_pdf
    from specframe_lab.report.report_page import PAGE, write_report

    found = gather(prompt, prompts, limit)
    asked = checked_prompts(found)
    texts = [one.given for one in asked]
    options["bitwise"] = [False, True] if options["bitwise"] else False
    moments = arrival_times(arrivals, len(texts), arrival_seed) if arrivals else None
    cells = expand(sampled(options, shared["temperature"]))
    grid = able_to_sample(checked(cells if each_at_its_best else with_shared_parts(cells)), shared["temperature"])
    settings = ComparisonSettings(
        texts,
        arrivals=moments,
        arrivals_as=arrivals,
        categories=[category(one) for one in asked],
        turns=[one.turn for one in asked],
        about_prompts=found.about,
        **shared,
    )
    tell_left_out(grid)
    if dry_run:
        foresee(grid, settings, output)
        return
    with claim_folder(output, RESULTS, [PAGE, *([PDF] if pdf else [])]):
        prepare(quiet, verbose, {cell["device"] for cell in grid.cells})
        with telling(quiet) as progress:
            comparison = run(grid, settings, output, ctx.meta["specframe.command"], progress)
        comparison.about["slo"] = slo
        figures = tables(comparison)
        page = write_report(comparison, figures, output)
        if not quiet:
            show(comparison, figures, served=bool(arrivals or shared["max_concurrency"] or slo))
        click.echo(page)
        if pdf:
            click.echo(write_pdf(comparison, figures, output))
    if any(comparison.fault(case) for case in comparison.cases):
        ctx.exit(1)


def foresee(grid: Grid, settings: ComparisonSettings, output: str) -> None:
    """Show what would be run."""
    from specframe_lab.comparison.compare import about, steps
    from specframe_lab.comparison.forecast import forecast
    from specframe_lab.comparison.shared_parts import parts_told

    planned = settings.planned(grid)
    found = forecast(list(steps(planned, settings.repeats)), output, about(grid, planned, settings, ""))
    show_forecast(found, lambda case: settings, output)
    for sentence in parts_told(planned):
        click.echo(sentence)


@contextlib.contextmanager
def telling(quiet: bool) -> Iterator[Progress]:
    """Say on standard error what is being run; where that is a terminal, in one line that moves; with ``quiet`` only faults."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    counts = progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
    columns = progress.TextColumn("{task.description}"), progress.BarColumn(), *counts
    done = 0

    def tell(step: Any, line: dict[str, Any] | None) -> None:
        nonlocal done
        name = f"repeat {step.repeat + 1}, {step.case}"
        if line is None:
            bar.update(task, total=step.total, completed=step.number - 1, description=name)
            return
        done = step.number
        bar.update(task, completed=step.number)
        outcome = line.get("error") or f"{per_second(line['figures']['tokens_per_second'])} tokens/s"
        if "error" in line or not (quiet or console.is_terminal):
            click.echo(f"[{step.number}/{step.total}] {name}: {outcome}", err=True)

    with progress.Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("loading models", total=None)
        try:
            yield tell
        except KeyboardInterrupt as interruption:
            raise type(interruption)(f" after run {done}: the same command goes on from there") from None


def show(comparison: Comparison, figures: dict[str, Table], served: bool) -> None:
    """Print the summary; with ``served`` the figures of requests, too."""
    from specframe.cli.tables import show_table
    from specframe_lab.comparison import summary

    tables = [summary.filled(summary.columns(comparison), summary.summary(comparison, figures))]
    tables += [(list(summary.served_columns(comparison)), summary.requests(comparison, figures))] if served else []
    for heads, rows in (*tables, summary.categories(figures)):
        if rows:
            show_table(heads, rows, numbers=True)
            click.echo()
    for sentence in summary.findings(comparison, figures):
        click.echo(sentence)
    click.echo()
