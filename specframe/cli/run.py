"""``specframe run``: decode prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any

import attrs
import click

from specframe import prompts as prompt_sources
from specframe.cli.options import WholeNumber, pipeline_options
from specframe.cli.results import Record, ResultFile, record
from specframe.cli.sampling import sampling_options, taken
from specframe.cli.sampling import samplings as checked_samplings
from specframe.errors import OptionError
from specframe.prompts import Prompt

if TYPE_CHECKING:
    from specframe.cli.display import Display
    from specframe.pipeline import Pipeline
    from specframe.sampling import Sampling
    from specframe.types import Result


@click.command()
@click.argument("prompt", nargs=-1)
@click.option(
    "--prompts",
    metavar="FILE",
    help="Prompts from a file, - for standard input: one per line, or JSON lines with prompt, text or turns.",
)
@pipeline_options
@sampling_options
@click.option(
    "--max-new-tokens",
    metavar="N",
    type=WholeNumber(1),
    default=64,
    show_default=True,
    help="Tokens generated per prompt, unless it stops before.",
)
@click.option(
    "--generation-config",
    metavar="C",
    default="auto",
    show_default=True,
    help="auto: what the target's generation config asks for holds where no option says otherwise; none: it does not.",
)
@click.option("--stream", is_flag=True, help="Show text as it comes, prompt by prompt.")
@click.option("--check", is_flag=True, help="Check positions, masks and caches in every round; slow.")
@click.option("--output", metavar="FILE.jsonl", help="Write each result to a file as it finishes.")
@click.option("--resume", is_flag=True, help="Complete the file of --output: decode only what it does not hold.")
@click.pass_context
def run(
    ctx: click.Context,
    prompt: tuple[str, ...],
    prompts: str | None,
    output: str | None,
    resume: bool,
    stream: bool,
    max_new_tokens: int,
    **options: Any,
) -> None:
    """Decode prompts, then show the figures.

    The prompts are those given as PROMPT and those of a file; without either, some starts of Python code. A JSON line may hold
    sampling parameters of its own beside its prompt, such as "temperature": 0.8; they win over the options.

    Exits with status 1 when a prompt failed, 2 when nothing could be decoded as asked, 130 when interrupted.
    """
    if resume and output is None:
        raise OptionError("--resume: expected --output FILE.jsonl with it, the file to complete")
    given = taken(options)
    asked = gather(prompt, prompts)
    file = None
    if output is not None:
        settings = {key: value for key, value in options.items() if key != "check"}  # a check changes no result
        file = ResultFile(output, asked, settings | given | {"max_new_tokens": max_new_tokens})
        file.resume() if resume else file.refuse_existing()
    asked, samplings = checked_samplings(asked, given)
    work = Work(asked, samplings, max_new_tokens, file.done if file else set())
    if failed := decode_all(work, file, options, stream):
        click.echo(f"{failed} of {len(asked)} prompts failed", err=True)
        ctx.exit(1)


def gather(arguments: tuple[str, ...], path: str | None) -> list[Prompt]:
    """Return the prompts asked for, arguments before the file's; the built-in ones when there are neither."""
    if path is None:
        return prompt_sources.from_arguments(arguments or prompt_sources.BUILT_IN)
    return prompt_sources.from_arguments(arguments) + prompt_sources.from_file(path)


@attrs.frozen(eq=False)
class Work:
    """What is to be decoded: prompts, how each is, and which of their continuations there are already."""

    prompts: list[Prompt]
    samplings: list[Sampling]
    max_new_tokens: int
    done: set[tuple[int, int]]

    @property
    def total(self) -> int:
        """How many continuations are asked for."""
        return sum(1 if prompt.fault else how.samples for prompt, how in zip(self.prompts, self.samplings, strict=True))

    def complete(self, index: int) -> bool:
        """Return whether all continuations of a prompt are there."""
        return all((index, sample) in self.done for sample in range(self.samplings[index].samples))

    def texts(self) -> list[str]:
        """Return the prompts, empty where there is nothing to decode.

        Prompts keep their index, on which random choices depend; an empty one fails, and its failure is passed over.
        """
        return ["" if self.complete(i) or prompt.fault else prompt.text for i, prompt in enumerate(self.prompts)]


def decode_all(work: Work, file: ResultFile | None, options: dict[str, Any], stream: bool) -> int:
    """Decode what the file does not hold, show it and write it, and return how many prompts failed."""
    from specframe.cli.display import Display, show_figures

    left = work.total - len(work.done)
    reasons: list[str] = []
    with Display(work.total, len(work.done), stream) as display, interruptible(reasons, left, file):
        pipe = pipeline(options, display) if left else None
        with file.writing() if file else contextlib.nullcontext():
            for kept in records(pipe, work, display, stream) if pipe else ():
                if file:
                    file.write(kept)
                display.completion(kept)
                reasons.append(kept["finish_reason"])
    failed = reasons.count("error")
    if pipe:
        show_figures(pipe.report, failed)
        click.echo(combination(pipe, options, work.samplings, work.max_new_tokens))
    elif file:
        click.echo(f"{file.path} holds all {work.total} results already", err=True)
    return failed


@contextlib.contextmanager
def interruptible(finished: Sized, total: int, file: ResultFile | None) -> Iterator[None]:
    """Let an interruption tell how far the run came."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"; {file.path} holds them, --resume decodes the rest" if file and finished else ""
        raise KeyboardInterrupt(f" after {len(finished)} of {total} prompts{kept}") from None


def pipeline(options: dict[str, Any], display: Display) -> Pipeline:
    """Return the pipeline that the options describe, watched by the display."""
    import transformers

    from specframe.pipeline import Pipeline

    transformers.logging.disable_progress_bar()  # it would draw over the display's own
    pipe = Pipeline(**options, observers=[display])
    display.decoding()
    return pipe


def records(pipe: Pipeline, work: Work, display: Display, stream: bool) -> Iterator[Record]:
    """Yield what is kept of each continuation that is not there already, as it finishes."""
    for result in results(pipe, work, display, stream):
        if (result.index, result.sample) not in work.done:
            yield record(result, work.prompts[result.index], work.samplings[result.index].samples)


def results(pipe: Pipeline, work: Work, display: Display, stream: bool) -> Iterator[Result]:
    """Yield continuations as they finish, after showing what they grow by if that is asked for."""
    asked, how = work.texts(), work.samplings
    if not stream:
        yield from pipe.as_completed(asked, work.max_new_tokens, sampling=how)
        return
    for chunk in pipe.stream(asked, work.max_new_tokens, sampling=how):
        if not work.complete(chunk.index):
            display.piece(chunk, work.prompts[chunk.index])
        if chunk.result:
            yield chunk.result


def combination(pipe: Pipeline, options: dict[str, Any], samplings: list[Sampling], max_new_tokens: int) -> str:
    """Return one line that names what was combined and says whether the output is the target's own."""
    from specframe.compose import SAMPLING_RULE, auto_length
    from specframe.generation import inherited, told
    from specframe.pipeline import choose

    target, strategy, draft_model = choose(options["target"], options["drafter"])
    settings = [
        one for one in pipe.settings(samplings, len(samplings), max_new_tokens) if not isinstance(one, OptionError)
    ]
    greedy = all(one.greedy for one in settings)
    use = pipe.composition_for(greedy)
    chosen = options | {
        "accept": ("greedy" if greedy else SAMPLING_RULE) if options["accept"] == "auto" else options["accept"],
        "draft_length": auto_length(use.rule, strategy)
        if options["draft_length"] == "auto"
        else options["draft_length"],
        "target": target,
        "drafter": draft_model or strategy,
        "schedule": options["schedule"] or use.alignment.scheduler,
        "kv": options["kv"] or use.alignment.kv,
    }
    roles = ("target", "drafter", "verify", "accept", "align", "schedule", "kv", "draft_length", "batch_size")
    named = ", ".join(f"{role.replace('_', ' ')} {chosen[role]}" for role in roles)
    precision = str(pipe.target_model.dtype).removeprefix("torch.")
    verdict = "lossless" if use.lossless else "NOT lossless"
    taken_over = told(inherited(settings))
    checkpoint = f"; generation config: {taken_over}" if taken_over else ""
    return f"this combination is {verdict}: {named}, on {pipe.target_model.device} in {precision}{checkpoint}"
