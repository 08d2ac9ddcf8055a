"""``specframe run``: decode prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any

import click

from specframe import prompts as prompt_sources
from specframe.cli.options import WholeNumber, pipeline_options
from specframe.cli.results import Record, ResultFile, record
from specframe.errors import OptionError
from specframe.prompts import Prompt

if TYPE_CHECKING:
    from specframe.cli.display import Display
    from specframe.pipeline import Pipeline


@click.command()
@click.argument("prompt", nargs=-1)
@click.option(
    "--prompts",
    metavar="FILE",
    help="Prompts from a file, - for standard input: one per line, or JSON lines with prompt, text or turns.",
)
@pipeline_options
@click.option(
    "--max-new-tokens",
    metavar="N",
    type=WholeNumber(1),
    default=64,
    show_default=True,
    help="Tokens generated per prompt, unless it stops before.",
)
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
    max_new_tokens: int,
    **options: Any,
) -> None:
    """Decode prompts, then show the figures.

    The prompts are those given as PROMPT and those of a file; without either, some starts of Python code.

    Exits with status 1 when a prompt failed, 2 when nothing could be decoded as asked, 130 when interrupted.
    """
    if resume and output is None:
        raise OptionError("--resume: expected --output FILE.jsonl with it, the file to complete")
    asked = gather(prompt, prompts)
    file = None
    if output is not None:
        settings = {key: value for key, value in options.items() if key != "check"}  # a check changes no result
        file = ResultFile(output, asked, settings | {"max_new_tokens": max_new_tokens})
        file.resume() if resume else file.refuse_existing()
    if failed := decode_all(asked, file, options, max_new_tokens):
        click.echo(f"{failed} of {len(asked)} prompts failed", err=True)
        ctx.exit(1)


def gather(arguments: tuple[str, ...], path: str | None) -> list[Prompt]:
    """Return the prompts asked for, arguments before the file's; the built-in ones when there are neither."""
    if path is None:
        return prompt_sources.from_arguments(arguments or prompt_sources.BUILT_IN)
    return prompt_sources.from_arguments(arguments) + prompt_sources.from_file(path)


def decode_all(asked: list[Prompt], file: ResultFile | None, options: dict[str, Any], max_new_tokens: int) -> int:
    """Decode what the file does not hold, show it and write it, and return how many prompts failed."""
    from specframe.cli.display import Display, show_figures

    done = file.done if file else set()
    left = len(asked) - len(done)
    reasons: list[str] = []
    with Display(len(asked), len(done)) as display, interruptible(reasons, left, file):
        pipe = pipeline(options, display) if left else None
        with file.writing() if file else contextlib.nullcontext():
            for kept in records(pipe, asked, done, max_new_tokens) if pipe else ():
                if file:
                    file.write(kept)
                display.completion(kept)
                reasons.append(kept["finish_reason"])
    failed = reasons.count("error")
    if pipe:
        show_figures(pipe.report, failed)
        click.echo(combination(pipe, options))
    elif file:
        click.echo(f"{file.path} holds all {len(asked)} results already", err=True)
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


def records(pipe: Pipeline, asked: list[Prompt], done: set[int], max_new_tokens: int) -> Iterator[Record]:
    """Yield what is kept of each prompt that is not done, as it finishes.

    Prompts keep their index, on which random choices depend: what is not to be decoded is passed on as an empty prompt.
    """
    texts = ["" if index in done or prompt.fault else prompt.text for index, prompt in enumerate(asked)]
    for result in pipe.as_completed(texts, max_new_tokens):
        if result.index not in done:
            yield record(result, asked[result.index])


def combination(pipe: Pipeline, options: dict[str, Any]) -> str:
    """Return one line that names what was combined and says whether the output is the target's own."""
    from specframe.pipeline import choose

    target, strategy, draft_model = choose(options["target"], options["drafter"])
    alignment = pipe.composition.alignment
    chosen = options | {
        "target": target,
        "drafter": draft_model or strategy,
        "schedule": options["schedule"] or alignment.scheduler,
        "kv": options["kv"] or alignment.kv,
    }
    roles = ("target", "drafter", "verify", "accept", "align", "schedule", "kv", "draft_length", "batch_size")
    named = ", ".join(f"{role.replace('_', ' ')} {chosen[role]}" for role in roles)
    precision = str(pipe.target_model.dtype).removeprefix("torch.")
    verdict = "lossless" if pipe.composition.lossless else "NOT lossless"
    return f"this combination is {verdict}: {named}, on {pipe.target_model.device} in {precision}"
