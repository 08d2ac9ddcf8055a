"""``specframe run``: decode prompts."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import click

from specframe.cli.option_types import File, OneOf, StrategyType, WholeNumber
from specframe.cli.signals import Screen, uninterrupted
from specframe.errors import OptionError, SpecframeWarning
from specframe.plugins.recipe import DEFAULTS, GENERATION_CONFIG, MAX_NEW_TOKENS
from specframe.plugins.registry import parse_specification, registry
from specframe.text.prompts.builtin import BUILT_IN
from specframe.text.prompts.prompt import Prompt, Prompts, checked_prompt
from specframe_std.command_options.name_checks import check_names
from specframe_std.command_options.options import LIMIT, PROMPTS_FILE, names, pipeline_options
from specframe_std.executors.command_ranks import ranks_of
from specframe_std.output_file import Output
from specframe_std.prompts.files import open_prompts
from specframe_std.result_file import ResultFile
from specframe_std.run_command.decoding import Decoding, Work
from specframe_std.run_command.results import Record, Results, ResultStream
from specframe_std.run_command.run_report import (
    DisplaySettings,
    RunOutcome,
    acceptance,
    as_json,
    combination,
    summary,
    workers_offer,
)
from specframe_std.run_command.sampling import SamplingFlags, sampling_options, take_options

if TYPE_CHECKING:
    from specframe.pipeline import Pipeline
    from specframe_std.run_command.display import Display

NO_SETTINGS = ("check", "executor")
"""Options that change no result: a file of results is completed with others of these, too."""


@click.command()
@click.argument("prompt", nargs=-1)
@PROMPTS_FILE
@LIMIT
@pipeline_options
@sampling_options
@click.option(
    "--max-new-tokens",
    metavar="N",
    type=WholeNumber(1),
    default=MAX_NEW_TOKENS,
    show_default=True,
    help="Tokens generated per prompt at most.",
)
@click.option(
    "--generation-config",
    metavar="C",
    type=OneOf(*GENERATION_CONFIG),
    default=DEFAULTS.generation_config,
    show_default=True,
    help="auto: the target's generation config gives the defaults of sampling options. none: it is ignored.",
)
@click.option(
    "--constraint",
    metavar="C",
    type=StrategyType("constraint"),
    help="Constraint that all continuations keep to: which tokens may come next.",
)
@click.option(
    "--chat", is_flag=True, help="Put texts through the chat template of the target, each as a message of the user."
)
@click.option("--stream", is_flag=True, help="Show text while it is generated, prompt by prompt.")
@click.option("--check", is_flag=True, help="Check positions, masks and caches in every round; slow.")
@click.option(
    *names("--output"),
    metavar="FILE.jsonl",
    type=File(),
    help="Write each result to a file when it finishes; -: to standard output, and all other output to standard error.",
)
@click.option("--resume", is_flag=True, help="Complete the file of --output: decode only the results missing in it.")
@click.option(
    "--report",
    metavar="FILE.json",
    type=File(),
    help="Write the figures, settings and environment to a file; -: to standard output.",
)
@click.option(*names("--quiet"), is_flag=True, help="Show no progress and no figures; with --output, no texts either.")
@click.option(
    *names("--verbose"), is_flag=True, help="Show more: acceptance of each text, versions, device, all figures."
)
@click.pass_context
def run(
    ctx: click.Context,
    prompt: tuple[str, ...],
    prompts: str | None,
    limit: int | None,
    max_new_tokens: int,
    chat: bool,
    stream: bool,
    output: str | None,
    resume: bool,
    report: str | None,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Decode prompts, then say in a line what speculation gained.

    Prompts are taken from PROMPT and from the file of --prompts; without either, built-in beginnings of Python code are used.
    A JSON line may hold sampling parameters with its prompt, such as "temperature": 0.8; they win over the options.

    Exit status: 1 if a prompt failed, 2 if an option is wrong or a file cannot be written, 130 after an interruption, 143 after
    SIGTERM, and 141 if the reader of standard output has left. With a file in --output, the run goes on without a reader.
    """
    ranks = ranks_of(options["executor"])
    if not ranks.writes:
        output = report = None
        resume, quiet, verbose = False, True, False
    with ranks.one_end():
        check_places(output, resume, report)
        check_names(options, anywhere=True)
        manner = asked_manner(output, report, stream=stream, quiet=quiet, verbose=verbose)
        given = take_options(options)
        settings = {key: value for key, value in options.items() if key not in NO_SETTINGS}
        settings |= given | {"max_new_tokens": max_new_tokens, "chat": chat or None}
        if executor := taking_files(options["executor"]):
            failed, figures = executor.run_files(ctx.params, settings)
            write_report(report, figures)
            ctx.exit(int(failed > 0))
        asked = ranks.shared(lambda: gather(prompt, prompts, limit))
        screen = Screen(needed=output in (None, "-"))
        with destination(output, resume, asked, settings) as results:
            parameters = SamplingFlags(given)
            count, total = parameters.survey(asked)
            done = ranks.shared(lambda: results.done)
            work = Work(asked, parameters, max_new_tokens, total, done, chat)
            outcome = decode_all(work, results, options, manner, screen)
        about = getattr(asked, "about", "")  # none of a list, which ranks share
        told = settings | ({"prompts": about} if about else {})
        write_report(report, as_json(outcome, told) if report else "", results.held())
        screen.check()
        if outcome.failed:
            with screen.showing():
                click.echo(f"{outcome.failed} of {count} prompts failed", err=True)
            ctx.exit(1)


def taking_files(specification: str) -> Any:
    """Return the executor of a specification if it offers "files", see :class:`specframe.contracts.engine.FilesExecutor`."""
    known = registry()
    entry = known.entry("executor", parse_specification(specification)[0])
    return known.make("executor", specification) if "files" in (entry.said.offers or ()) else None


def check_places(output: str | None, resume: bool, report: str | None) -> None:
    """Raise :class:`OptionError` unless results and figures can be written to the given files."""
    if resume and output in (None, "-"):
        raise OptionError("--resume: expected --output FILE.jsonl with it, the file to complete")
    if report is None:
        return
    if report != "-":
        Output(report, "--report").refuse_foreign()
    if output and Output(report).path == Output(output).path:
        raise OptionError(f"--report: expected another place than --output has, got {report!r} for both")


def asked_manner(output: str | None, report: str | None, stream: bool, quiet: bool, verbose: bool) -> DisplaySettings:
    """Return the display settings. JSON on standard output sends everything else to standard error."""
    if quiet and verbose:
        raise OptionError("--quiet and --verbose: expected one of them, got both")
    completions = output != "-" and not (quiet and output)
    return DisplaySettings(stream, quiet, verbose, completions, err="-" in (output, report))


def destination(output: str | None, resume: bool, asked: Iterable[Prompt], settings: Record) -> Results:
    """Return the storage of results."""
    if output is None:
        return Results()
    if output == "-":
        return ResultStream(settings)
    return ResultFile(output, asked, settings, resume)


def write_report(report: str | None, text: str, held: str = "") -> None:
    """Write a run's figures to standard output or a file. An error says what the file of results holds: ``held``."""
    if report == "-":
        click.echo(text, nl=False)
    elif report:
        place = Output(report, "--report")
        place.refuse_foreign()
        place.replace(text, more=f"; {held}, nothing is to be decoded again" if held else "")


def gather(arguments: tuple[str, ...], path: str | None, limit: int | None = None) -> Prompts:
    """Return the first ``limit`` prompts: arguments first, then the file's; without either, the built-in prompts.

    No more of the file is read than that asks for.
    """
    texts = arguments if arguments or path is not None else BUILT_IN
    asked = [checked_prompt(text, f"argument {number}") for number, text in enumerate(texts[:limit], start=1)]
    left = None if limit is None else limit - len(asked)
    read: Iterable[Prompt] = () if path is None or left == 0 else open_prompts(path, left)
    return Prompts(lambda: itertools.chain(asked, read), read.about if isinstance(read, Prompts) else "")


def decode_all(work: Work, results: Results, options: Record, manner: DisplaySettings, screen: Screen) -> RunOutcome:
    """Decode the missing continuations, show and store them, and return the outcome."""
    from specframe_std.run_command.display import Display

    left = work.total - len(work.done)
    finished: Counter[str] = Counter()
    run = None
    with Display(work.total, len(work.done), manner) as display, interruptible(finished, left, results):
        if left:
            run = Decoding(pipeline(options, display, manner.quiet), work, display, manner.stream, screen)
        results.begin(work.total)
        for kept in run.records() if run else ():
            with uninterrupted():  # the figures of an interrupted run are of what the file holds
                results.write(kept)
                finished[kept["finish_reason"]] += 1
            with screen.showing():
                display.completion(kept, run.first if run else math.inf)
        results.finish()
    if not run:
        click.echo(f"{results.held()} already", err=True)
        return RunOutcome(0)
    failed = finished["error"]
    combined = combination(run.pipe, options, run.greedy, run.inherited)
    outcome = RunOutcome(failed, attrs.evolve(run.pipe.report, errors=failed), combined)
    with screen.showing():
        show(outcome, manner, run.pipe.recipe.executor)
    return outcome


def show(outcome: RunOutcome, manner: DisplaySettings, executor: str) -> None:
    """Print the outcome of a run that an executor of this name has decoded."""
    from specframe_std.run_command.display import show_conditions, show_figures

    if manner.quiet or outcome.report is None:
        return
    if manner.verbose:
        from specframe_std.run_command.environment import environment

        show_conditions("environment", environment({outcome.combination["device"]}), manner.err)
        show_figures(outcome.report.figures(), manner.err)
    offer = workers_offer(outcome, executor)
    for line in (summary(outcome.report.figures()), acceptance(outcome.combination), *filter(None, [offer])):
        click.echo(line, err=manner.err)


@contextlib.contextmanager
def interruptible(finished: Counter[str], total: int, results: Results) -> Iterator[None]:
    """Add the number of finished prompts to the message of an interruption."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        kept = f"; {held}" if (held := results.held()) else ""
        raise type(interruption)(f" after {finished.total()} of {total} prompts{kept}") from None


def pipeline(options: dict[str, Any], display: Display, quiet: bool) -> Pipeline:
    """Return the pipeline for the options, with the display as observer; ``quiet``: without warnings."""
    import transformers

    from specframe.devices import kinds
    from specframe.pipeline import Pipeline

    transformers.logging.disable_progress_bar()  # it would overwrite the display's own bar
    if quiet:
        transformers.logging.set_verbosity_error()
        warnings.simplefilter("ignore")
    pipe = Pipeline(**options, observers=[display])
    if pipe.recipe.graphs == "on" and kinds.of(pipe.device).recording is None:
        told = f"--graphs on: {pipe.device} records no graphs, so forwards run as they are"
        warnings.warn(told, SpecframeWarning, stacklevel=2)
    display.decoding()
    return pipe
