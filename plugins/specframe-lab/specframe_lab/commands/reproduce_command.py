"""``specframe reproduce``: the tables of the paper on batched speculative decoding, with any pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click
from specframe_std.command_options.name_checks import check_names
from specframe_std.command_options.options import LIMIT, MODELS, PLACE, choice_option, draft_length, whole, with_options
from specframe_std.output_folders import claim_folder

from specframe.cli.option_types import File, OneOf
from specframe.errors import OptionError
from specframe.text.prompts.builtin import BUILT_IN
from specframe_lab.commands.compare_command import telling
from specframe_lab.commands.dry_run_command import DRY_RUN, show_forecast
from specframe_lab.commands.grids import SHOWN, Remembered, folder, prepare, readable
from specframe_lab.commands.lab_option_types import Arrivals, ListOf
from specframe_lab.commands.modelled_options import NUMBERS

if TYPE_CHECKING:
    from specframe_lab.comparison.compare import Progress
    from specframe_lab.reproduction.reproduce import PaperPart, Reproduction


PARTS = ("match", "speed", "uniform", "random", "bursty", "arrivals")
"""Parts of a reproduction."""
BURSTY = "gamma:0.05,burstiness=0.25"
"""Arrivals of part bursty: gaps that spread twice as wide as those of a Poisson process."""
NO_PROMPTS = (
    f"no --prompts: {len(BUILT_IN)} built-in starts of Python code are measured, the published figures are of SpecBench's "
    "480 questions"
)


@click.command(cls=Remembered)
@click.option(
    "--prompts", metavar="FILE", type=File(), help="SpecBench's questions, or prompts as every command takes them."
)
@LIMIT
@whole("--sample", "All but table 1 with N prompts only, evenly spread over those given.")
@whole("--max-prompt-tokens", "Cut prompts to their first N tokens.", 1024)
@with_options(MODELS, [draft_length("5")], PLACE)
@choice_option("--match-batch-sizes", "N,...", NUMBERS, "Batch sizes of table 1.", "1,4")
@choice_option("--arrival-batch-sizes", "N,...", NUMBERS, "Batch sizes of parts bursty and arrivals.", "2,4")
@choice_option("--batch-sizes", "N,...", NUMBERS, "Batch sizes of everything else.", "1,2,4,8,16,32")
@whole("--match-tokens", "Tokens compared per prompt for table 1.", 50)
@whole("--max-new-tokens", "Tokens generated per prompt in everything else.", 128)
@whole("--repeats", "Times each timed cell is run.", 3)
@click.option(
    "--arrivals",
    metavar="PATTERN:RATE|FILE",
    type=Arrivals(),
    help="Measure latency with prompts that arrive at random, RATE per second, or as a file of seconds says.",
)
@choice_option(
    "--bursty",
    "PATTERN:RATE|FILE",
    Arrivals(),
    "When prompts arrive in part bursty, RATE per pass of the target.",
    BURSTY,
)
@click.option(
    "--parts", metavar="P,...", type=ListOf(OneOf(*PARTS)), help="Run only these parts now; the page has all."
)
@folder("reproduction", "Where results and page go; what it holds of this reproduction already is not run again.")
@DRY_RUN
@with_options(SHOWN)
@click.pass_context
def reproduce(
    ctx: click.Context, output: str, parts: list[str] | None, dry_run: bool, quiet: bool, verbose: bool, **options: Any
) -> None:
    """Reproduce the tables of the paper on batched speculative decoding with any pair.

    The paper is Batch Speculative Decoding Done Right (arXiv 2510.22876).
    Parts: match (table 1), speed (table 2, overhead, throughput, latency), uniform and random (grouping of EXSPEC), bursty
    (the tail when prompts arrive in bursts, in passes of the target), and arrivals where --arrivals is given. The folder then holds
    results.jsonl (a line per run), reproduction.html and reproduction.md (the tables, with what is published; the first is one page
    that needs no network) and figures as SVG and PNG. What was interrupted goes on when the same command is given again.

    Without --prompts the built-in starts of Python code are measured; the published figures are of SpecBench's questions.

    Exits with status 1 when a cell could not be run.
    """
    check_names(options)
    if "arrivals" in (parts or ()) and options["arrivals"] is None:
        raise OptionError("--parts: arrivals needs --arrivals, as in --arrivals poisson:3")
    planned = planning(**options)
    names = [part.name for part in planned]
    notes = [] if options["prompts"] else [NO_PROMPTS]
    notes += crowded(planned, parts or names)
    command = ctx.meta["specframe.command"]
    if dry_run:
        foresee(planned, output, parts or names, notes)
        return
    prepare(quiet, verbose, {options["device"]})
    found = run(planned, output, command, parts or names, notes, quiet)
    faults = [f"{case}: {fault}" for kept in found.parts.values() for case in kept.cases if (fault := kept.fault(case))]
    for fault in faults:
        click.echo(fault, err=True)
    if faults:
        ctx.exit(1)


def crowded(planned: list[PaperPart], only: list[str]) -> list[str]:
    """Return sentences that name the batch sizes of the parts to run which are larger than the number of their prompts."""
    from specframe_lab.reproduction.reproduce import unfilled

    running = [part for part in planned if part.name in only]
    return unfilled(
        {part.name: (len(part.settings.prompts), [case.batch_size for case in part.cases]) for part in running}
    )


def foresee(planned: list[PaperPart], output: str, only: list[str], notes: list[str]) -> None:
    """Show what would be run, after some notes."""
    from specframe_lab.comparison.compare import steps
    from specframe_lab.comparison.forecast import forecast
    from specframe_lab.reproduction.reproduce import about

    for note in notes:
        click.echo(note, err=True)
    wanted = [step for part in planned if part.name in only for step in steps(part.cases, part.settings.repeats)]
    settings = {part.name: part.settings for part in planned}
    show_forecast(forecast(wanted, output, about(planned, "")), lambda case: settings[case.cell["part"]], output)


def planning(
    prompts: str | None,
    limit: int | None,
    sample: int | None,
    max_prompt_tokens: int,
    match_batch_sizes: list[int],
    arrival_batch_sizes: list[int],
    batch_sizes: list[int],
    match_tokens: int,
    max_new_tokens: int,
    repeats: int,
    arrivals: str | None,
    bursty: str,
    **pair: Any,
) -> list[PaperPart]:
    """Return the parts that the options describe, after checking what they name."""
    from specframe.models.pairs import choose
    from specframe_lab.arrival_times import arrival_times
    from specframe_lab.grid import checked
    from specframe_lab.reproduction.reproduce import bare, plan, spread_over

    if choose(pair["target"], pair["drafter"])[1] == "none":
        raise OptionError(
            "--drafter: expected one that drafts, got 'none': plain decoding is in every part already, as the baseline"
        )
    texts = readable((), prompts, limit)
    some = spread_over(texts, sample)
    cut: dict[str, Any] = {"max_prompt_tokens": max_prompt_tokens}
    timed = cut | {"prompts": some, "max_new_tokens": max_new_tokens}
    grouping = timed | {"repeats": 1, "warm_up": 0}
    settings = {
        "match": cut | {"max_new_tokens": match_tokens, "repeats": 1, "warm_up": 0},
        "speed": timed | {"repeats": repeats, "sort": True},
        "uniform": grouping,
        "random": grouping | {"uniform": False},
        "bursty": grouping
        | {"arrivals": arrival_times(bursty, len(some), 0), "arrivals_as": bursty, "clock": "passes"},
    }
    if arrivals:
        moments = arrival_times(arrivals, len(some), 0)
        settings["arrivals"] = timed | {"repeats": 1, "arrivals": moments, "arrivals_as": arrivals}
    own = {"match": match_batch_sizes, "bursty": arrival_batch_sizes, "arrivals": arrival_batch_sizes}
    planned = plan(pair, texts, {name: own.get(name, batch_sizes) for name in settings}, settings)
    checked(bare(case).cell for part in planned for case in part.cases)
    return planned


def run(
    planned: list[PaperPart], output: str, command: str, only: list[str], notes: list[str], quiet: bool
) -> Reproduction:
    """Run the steps that are missing, after some notes, then write the page."""
    from specframe_lab.comparison.comparison_results import RESULTS
    from specframe_lab.reproduction.reproduce import reproduce as run_parts
    from specframe_lab.reproduction.reproduction_page import HTML, PAGE, write_reproduction

    with claim_folder(output, RESULTS, [PAGE, HTML]):
        with telling(quiet) as tell:
            found = run_parts(planned, output, command, only, naming(tell, notes))
        click.echo(write_reproduction(found, output))
    return found


def naming(tell: Progress, notes: list[str]) -> Progress:
    """Return a progress callback that names the part of every step, and prints the notes before the first."""
    notes = [*notes]

    def telling_part(step: Any, line: dict[str, Any] | None) -> None:
        while notes:
            click.echo(notes.pop(0), err=True)
        named = attrs.evolve(step.case, scheme=f"{step.case.cell['part']}, {step.case.scheme}")
        tell(attrs.evolve(step, case=named), line)

    return telling_part
