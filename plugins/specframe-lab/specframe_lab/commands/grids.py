"""Common parts of commands that run a grid: options with comma lists, prompts that all have to be readable, what is shown."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import click
from specframe_std.command_options.options import names, pipeline_options
from specframe_std.run_command.run import gather

from specframe.cli.option_types import File, Number
from specframe.errors import OptionError, SpecframeWarning
from specframe.text.prompts.prompt import Given, Prompt
from specframe_lab.commands.lab_option_types import ListOf
from specframe_lab.grid import COMPARABLE_RULE, Cell, Grid, varying


class Remembered(click.Command):
    """A command that knows the command line it was called with."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the command line in ``ctx.meta``, as it was typed."""
        ctx.meta["specframe.command"] = shlex.join(["specframe", str(self.name), *args])
        return super().parse_args(ctx, args)


def grid_options(lenient: bool = False, **defaults: str) -> Callable[..., Any]:
    """Return a decorator that adds a pipeline's options to a command, all but ``--config`` as comma lists.

    Args:
        lenient: a wrong value in a list is kept as :class:`specframe_lab.commands.lab_option_types.Unusable`.
        defaults: what the command runs unless something else is asked for, where that is not the pipeline's own default.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        present = list(getattr(command, "__click_params__", ()))
        command = pipeline_options(command)
        for option in command.__click_params__:  # type: ignore[attr-defined]
            if option not in present and option.name != "config" and not option.is_flag:
                option.type = ListOf(option.type, lenient)
                option.metavar = f"{option.metavar},..."
                option.default = defaults.get(option.name, option.default)
        return command

    return add


def folder(default: str, meaning: str) -> Callable[..., Any]:
    """Return the option for the folder that a command writes to."""
    kind = File("the name of a folder", "dir")
    return click.option(
        *names("--output"), metavar="FOLDER", type=kind, default=default, show_default=True, help=meaning
    )


SHOWN = (
    click.option(*names("--quiet"), is_flag=True, help="Show no progress, tables and warnings: only what was found."),
    click.option(*names("--verbose"), is_flag=True, help="Show the versions and the device as well."),
)

TEMPERATURE = click.option(
    "--temperature",
    metavar="X",
    type=Number(0),
    default=0.0,
    show_default=True,
    help=f"Draw tokens at this temperature, by --accept {COMPARABLE_RULE} where that is auto; 0 is greedy decoding.",
)


def sampled(options: dict[str, Any], temperature: float) -> dict[str, Any]:
    """Return a grid's options; with a temperature its rule "auto" is the one whose ids can be compared."""
    from specframe.text.sampling import Sampling

    if Sampling(temperature=temperature).greedy:
        return options
    return options | {"accept": [COMPARABLE_RULE if rule == "auto" else rule for rule in options["accept"]]}


def readable(arguments: tuple[str, ...], path: str | None, limit: int | None = None) -> list[Given]:
    """Return the first ``limit`` prompts as a pipeline takes them; raise as :func:`checked_prompts` does."""
    asked = checked_prompts(gather(arguments, path, limit))
    first = [prompt.given for prompt in asked if prompt.turn == 1]
    if len(first) < len(asked):
        left_out = f"{len(asked) - len(first)} left out, since nothing answers the first ones here"
        warnings.warn(f"later turns of chats: {left_out}", SpecframeWarning, stacklevel=2)
    return first


def checked_prompts(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Return prompts as a list; raise :class:`OptionError` for one that is empty or cannot be read."""
    asked = [*prompts]
    if fault := next((prompt.fault for prompt in asked if prompt.fault), None):
        raise OptionError(f"prompts: {fault}")
    if (empty := next((index for index, prompt in enumerate(asked) if not prompt.text.strip()), None)) is not None:
        raise OptionError(f"prompt {empty}: the prompt is empty: expected at least one token")
    name_parameters(asked)
    return asked


def category(prompt: Prompt) -> list[str | int] | None:
    """Return a prompt's own category and the turn of its chat that is answered, or None if its entry has no category."""
    named = prompt.parameters.get("category")
    turns = sum(message["role"] == "user" for message in prompt.messages or ())
    return None if named is None else [str(named), max(prompt.turn, turns)]


def name_parameters(prompts: list[Prompt]) -> None:
    """Warn of parameters of single prompts, which a grid passes over: it decodes all of them alike."""
    if not any(prompt.parameters for prompt in prompts):
        return
    from specframe.text.sampling import Sampling

    found = {key: prompt.place for prompt in reversed(prompts) for key in prompt.parameters}
    if ignored := [name for name in Sampling.parameters() if name in found]:
        warnings.warn(
            f"{found[ignored[0]]}: parameters of single prompts have no effect here: {', '.join(ignored)}",
            SpecframeWarning,
            stacklevel=3,
        )


def prepare(quiet: bool, verbose: bool, devices: Iterable[str]) -> None:
    """Leave out warnings, or show the environment; transformers draws and remarks nothing in either case.

    Raises:
        OptionError: both were asked for.
    """
    if quiet and verbose:
        raise OptionError("--quiet and --verbose: expected one of them, got both")
    import transformers

    transformers.logging.disable_progress_bar()  # it would draw over what a command shows
    transformers.logging.set_verbosity_error()  # it remarks on pad ids in prompts
    if quiet:
        warnings.simplefilter("ignore")
    if verbose:
        from specframe_std.run_command.display import show_conditions
        from specframe_std.run_command.environment import environment

        show_conditions("environment", environment(set(devices)))


def tell_left_out(grid: Grid) -> None:
    """Say on standard error which combinations are left out, and why."""
    for sentence in left_out(grid):
        click.echo(f"left out: {sentence}", err=True)


def left_out(grid: Grid) -> list[str]:
    """Return a sentence per reason: what the combinations have in common that it holds for, and the reason."""
    every = [*grid.cells, *(cell for cell, _ in grid.refused)]
    reasons: dict[str, list[Cell]] = {}
    for cell, why in grid.refused:
        reasons.setdefault(why, []).append(cell)
    return [f"{common(cells, every)}: {why}" for why, cells in reasons.items()]


def common(cells: list[Cell], every: list[Cell]) -> str:
    """Return the values that some cells share and others have not, and how many cells that are."""
    shared = [option for option in varying(every) if option not in varying(cells) and cells[0][option] is not None]
    words = ", ".join(f"{option.replace('_', ' ')} {cells[0][option]}" for option in shared)
    count = f"{len(cells)} combinations" if len(cells) > 1 else ""
    return ", ".join(part for part in (words, count) if part) or "one combination"
